"""The index of a gallery: in FAISS on one machine, or in Milvus. It never imports torch."""

from couce.index.base import Hit, Index, Item, NewItem
from couce.index.opening import open_index

__all__ = ["Hit", "Index", "Item", "NewItem", "open_index"]
