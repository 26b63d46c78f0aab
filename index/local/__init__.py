"""An index in a folder: a SQLite catalog with all items and vectors, and a FAISS file for search.

The FAISS file can always be rebuilt from the catalog.
"""
