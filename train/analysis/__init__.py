"""Studies: many runs of training, kept, and the tables and figures made of them."""
