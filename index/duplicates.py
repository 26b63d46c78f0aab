"""Finds images that are nearly the same, by the cosine of their vectors."""

from collections.abc import Iterator
from typing import NamedTuple

from couce.index.base import Index, Item


class Pair(NamedTuple):
    score: float
    first: Item
    second: Item


def near_duplicates(index: Index, threshold: float = 0.98, most: int = 20) -> Iterator[Pair]:
    """Yields each pair of items with a cosine of at least ``threshold`` once.

    Each item is compared only with its ``most`` nearest items.
    """
    seen: set[tuple[str, str]] = set()
    for block in index.vectors():
        # The block is searched in parts, because each hit brings its item into memory.
        for start in range(0, len(block.ids), 256):
            own = index.get_many(block.ids[start : start + 256])
            hits = index.search(block.vectors[start : start + 256], most + 1)
            for item, found in zip(own, hits, strict=True):
                if item is None:
                    continue
                for hit in found:
                    pair = (min(item.id, hit.id), max(item.id, hit.id))
                    if hit.id == item.id or hit.score < threshold or pair in seen:
                        continue
                    seen.add(pair)
                    yield Pair(hit.score, item, hit.item)
