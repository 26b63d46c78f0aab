"""The results of an analysis: tables, images and a self-contained HTML page."""
