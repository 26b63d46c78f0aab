"""The gallery: FAISS on one machine, Milvus beyond it. Never imports torch."""

from couce.index.base import Hit, Index, Item, NewItem
from couce.index.opening import open_index

__all__ = ["Hit", "Index", "Item", "NewItem", "open_index"]
