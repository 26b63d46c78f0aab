"""The two parts that a search covers: the FAISS file, and the rows added after it was written."""

from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from couce.errors import CouceError
from couce.index.base import Vectors
from couce.index.local.manifest import Manifest, VectorFile
from couce.index.local.structures import innermost, most_effort, parameters, search
from couce.machine.libraries import import_library

Numbers = NDArray[np.int64]


class Truth(NamedTuple):
    """The functions with which a search reads the catalog."""

    load: Callable[[Numbers], Vectors]  # the vectors of some rows
    up_to: Callable[[int], Numbers]  # all row numbers up to a given one


# If a filter allows a smaller share of the rows, they are compared one by one, because a graph or
# compressed vectors would be slow or inexact.
_FEW = 0.05


class Nearest(NamedTuple):
    """The rows that a search found, nearest first. A number of -1 means that there is no row."""

    scores: NDArray[np.float32]  # (n, k)
    numbers: Numbers  # (n, k)


def nothing(queries: int) -> Nearest:
    """An empty result for so many queries."""
    return Nearest(np.empty((queries, 0), np.float32), np.empty((queries, 0), np.int64))


class Allowed:
    """The rows of the main part that a search may find."""

    def __init__(self, numbers: Numbers | None, bits: NDArray[np.bool_] | None, count: int) -> None:
        self.numbers = numbers  # sorted; None if nearly all rows are allowed
        self.bits = bits  # one for each row number; None if all rows are allowed
        self.count = count  # how many rows are allowed

    @classmethod
    def these(cls, numbers: Numbers, last: int) -> "Allowed":
        """Allows the given rows. ``numbers`` is sorted; those after ``last`` are left out."""
        own = numbers[: np.searchsorted(numbers, last, "right")]
        bits = np.zeros(last + 1, np.bool_)
        bits[own] = True
        return cls(own, bits, len(own))

    @classmethod
    def all_but(cls, removed: Numbers, last: int, count: int) -> "Allowed":
        """Allows all of ``count`` rows except the removed ones."""
        gone = removed[removed <= last]
        if not len(gone):
            return cls(None, None, count)
        bits = np.ones(last + 1, np.bool_)
        bits[gone] = False
        return cls(None, bits, count - len(gone))

    @cached_property
    def selector(self) -> Any:
        if self.bits is None:
            return None
        faiss = import_library("faiss")

        # FAISS keeps only a pointer to these bits, so they must stay alive.
        self._packed = np.packbits(self.bits, bitorder="little")
        return faiss.IDSelectorBitmap(len(self._packed), faiss.swig_ptr(self._packed))


class MainPart:
    """A FAISS file that is mapped into memory. Only the pages that a search needs are read."""

    def __init__(self, folder: Path, manifest: Manifest, file: VectorFile) -> None:
        faiss = import_library("faiss")

        self.revision, self.count, self.last = manifest.revision, manifest.count, manifest.last
        self.structure, self.file = manifest.structure, file
        try:
            self.index = faiss.read_index(str(folder / file.name), faiss.IO_FLAG_MMAP_IFC)
            self._inner = innermost(self.index)
        except RuntimeError as error:
            reason = str(error).splitlines()[0]
            raise CouceError(f"{folder / file.name} cannot be loaded: {reason}") from None
        if self.index.ntotal != self.count or self.index.d != manifest.dim:
            raise CouceError(f"{folder / file.name} does not match the manifest")

    def search(self, queries: Vectors, k: int, allowed: Allowed, truth: Truth) -> Nearest:
        """The ``k`` nearest of the allowed rows, or all of them if there are fewer."""
        k = min(k, self.count, allowed.count)
        if not k:
            return nothing(len(queries))
        share = allowed.count / self.count
        # These structures skip other rows at no cost, and their scores are exact.
        skips = self._inner.kind in ("flat", "ivf") and not self.structure.refine
        if allowed.numbers is not None and share < _FEW and not skips:
            return among(queries, k, allowed.numbers, truth)
        effort = self._effort(k, share)
        found = self._search(queries, k, effort, allowed, truth)
        most = most_effort(self._inner)
        short = (found.numbers < 0).any(axis=1)
        if short.any() and effort < most:
            fuller = self._search(queries[short], k, most, allowed, truth)
            found.scores[short], found.numbers[short] = fuller
            short = (found.numbers < 0).any(axis=1)
        # A graph may have parts that a search cannot reach. Then all rows are compared.
        if short.any():
            listed = allowed.numbers if allowed.numbers is not None else truth.up_to(self.last)
            found.scores[short], found.numbers[short] = among(queries[short], k, listed, truth)
        return found

    def _effort(self, k: int, share: float) -> int:
        """How hard to search for ``k`` neighbours if only a share of the rows is allowed.

        The effort was tuned for 10 neighbours among all rows. More neighbours, or the same number
        among fewer rows, are spread over more inverted lists.
        """
        effort, most = self.structure.effort, most_effort(self._inner)
        if self._inner.kind == "ivf" and share < 0.1:
            return most  # all lists, since few rows of each are compared
        wanted = effort * max(1.0, k / 10) ** 0.5 / share
        return min(most, max(int(wanted), k if self._inner.kind == "hnsw" else 1))

    def _search(
        self, queries: Vectors, k: int, effort: int, allowed: Allowed, truth: Truth
    ) -> Nearest:
        chosen = parameters(self._inner, effort, allowed.selector)
        refine = self.structure.refine
        wide = min(k * refine, allowed.count) if refine else k
        if self._inner.kind == "ivf":
            # For a single query, the cores divide its lists. Several queries are divided among the
            # cores. The results are the same, so another thread may change this in the meantime.
            self._inner.index.parallel_mode = 1 if len(queries) == 1 else 0
        scores, numbers = search(self.index, queries, wide, chosen)
        return rank_anew(queries, numbers, k, truth) if refine else Nearest(scores, numbers)


class RecentPart:
    """The rows that were added after the FAISS file was written. They are compared one by one.

    Rows are only appended, so a search in an older part is not disturbed by a newer one.
    """

    def __init__(self) -> None:
        self._numbers = np.empty(0, np.int64)
        self._vectors = np.empty((0, 0), np.float32)
        self.size = 0

    def grown(self, numbers: Numbers, vectors: Vectors) -> "RecentPart":
        """A new part with further rows. Both parts share the memory if it has enough space."""
        new = RecentPart()
        new.size = self.size + len(numbers)
        new._numbers, new._vectors = self._numbers, self._vectors
        if new.size > len(self._numbers):
            room = max(256, new.size + new.size // 4)
            new._numbers = np.empty(room, np.int64)
            new._vectors = np.empty((room, vectors.shape[1]), np.float32)
            if self.size:
                new._numbers[: self.size] = self.numbers
                new._vectors[: self.size] = self.vectors
        new._numbers[self.size : new.size] = numbers
        new._vectors[self.size : new.size] = vectors
        return new

    @property
    def numbers(self) -> Numbers:
        return self._numbers[: self.size]

    @property
    def vectors(self) -> Vectors:
        return self._vectors[: self.size]

    def search(self, queries: Vectors, k: int, allowed: NDArray[np.intp] | None) -> Nearest:
        """The nearest of the rows at the places ``allowed``, or of all rows if it is None."""
        numbers = self.numbers if allowed is None else self.numbers[allowed]
        vectors = self.vectors if allowed is None else self.vectors[allowed]
        return exact(queries, k, numbers, vectors)


def exact(queries: Vectors, k: int, numbers: Numbers, vectors: Vectors) -> Nearest:
    """The nearest rows, found by comparing all of them."""
    k = min(k, len(numbers))
    if not k:
        return nothing(len(queries))
    # For a single query, one matrix-vector product is faster than a call of FAISS.
    if len(queries) == 1:
        scores = vectors @ queries[0]
        best = np.argpartition(-scores, k - 1)[:k] if k < len(scores) else np.arange(k)
        best = best[np.argsort(-scores[best], kind="stable")]
        return Nearest(scores[None, best], numbers[None, best])
    faiss = import_library("faiss")

    found, at = faiss.knn(queries, vectors, k, metric=faiss.METRIC_INNER_PRODUCT)
    return Nearest(found, numbers[at])


def among(queries: Vectors, k: int, numbers: Numbers, truth: Truth, block: int = 16_384) -> Nearest:
    """The nearest of the rows ``numbers``, by exact search with one block in memory at a time."""
    found = nothing(len(queries))
    for start in range(0, len(numbers), block):
        part = numbers[start : start + block]
        found = merged(found, exact(queries, k, part, truth.load(part)), k)
    return found


def merged(first: Nearest, second: Nearest, k: int) -> Nearest:
    """The ``k`` nearest rows of two results."""
    if not first.numbers.shape[1]:
        return Nearest(second.scores[:, :k], second.numbers[:, :k])
    if not second.numbers.shape[1]:
        return Nearest(first.scores[:, :k], first.numbers[:, :k])
    scores = np.concatenate([first.scores, second.scores], axis=1)
    numbers = np.concatenate([first.numbers, second.numbers], axis=1)
    scores = np.where(numbers < 0, -np.inf, scores)
    order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    return Nearest(
        np.take_along_axis(scores, order, axis=1), np.take_along_axis(numbers, order, axis=1)
    )


def rank_anew(queries: Vectors, numbers: Numbers, k: int, truth: Truth) -> Nearest:
    """The ``k`` nearest of the candidates (n, m), by their uncompressed vectors."""
    there, at = np.unique(numbers[numbers >= 0], return_inverse=True)
    scores = np.full(numbers.shape, -np.inf, np.float32)
    if len(there):
        vectors = truth.load(there)
        places = np.full(numbers.shape, -1)
        places[numbers >= 0] = at
        for row, query in enumerate(queries):
            valid = places[row] >= 0
            scores[row, valid] = vectors[places[row, valid]] @ query
    order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    return Nearest(
        np.take_along_axis(scores, order, axis=1), np.take_along_axis(numbers, order, axis=1)
    )
