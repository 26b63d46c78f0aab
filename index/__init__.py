"""The gallery - FAISS on one machine, Milvus beyond it. Imports couce only, never torch."""
