"""An index in a Milvus collection."""
