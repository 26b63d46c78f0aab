"""An index in a folder: a SQLite catalog, which is the truth, and a FAISS file."""
