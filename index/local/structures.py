"""Builds and tunes the FAISS structure of an index.

``auto`` searches small galleries exactly and larger ones with inverted lists (IVF). It compresses
vectors (PQ) only if they would not fit into memory. Each search visits some of the lists. Their
number is tuned until held-out queries reach the recall that was asked for.
"""

import math
import statistics
import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from couce.errors import CouceError, unknown_name
from couce.index.base import Vectors
from couce.index.local.manifest import Measured, Structure
from couce.machine.libraries import import_library

Numbers = NDArray[np.int64]
Blocks = Iterable[tuple[Numbers, Vectors]]

TYPES = ("auto", "flat", "hnsw", "ivf", "ivfpq")
K = 10  # recall is measured with so many neighbours

FLAT_UP_TO = 50_000  # exact search in so many vectors takes only milliseconds
MEMORY_SHARE = 0.5  # the share of the machine's memory that uncompressed vectors may take
_POINTS = 40  # training vectors of each list; FAISS warns below 39
_QUERIES = 1024  # the most held-out queries
_SINGLE = 50  # queries that are timed one by one


class Built(NamedTuple):
    """A FAISS index and its description."""

    index: Any
    structure: Structure


def lists(count: int) -> int:
    """The number of inverted lists: a power of two near 4·√n, with enough training points for each.

    Half as many lists would be trained in a quarter of the time. But if clusters are small, each
    list then has vectors of many clusters, and a cluster is spread over many lists. A search among
    a million vectors in clusters of 50 had to visit 40 % of the lists.

    >>> lists(1_000_000), lists(100_000), lists(100)
    (4096, 1024, 2)
    """
    wanted = 2 ** round(math.log2(max(1.0, 4 * math.sqrt(count))))
    while wanted > 1 and wanted * _POINTS > count:
        wanted //= 2
    return wanted


def codes(dim: int) -> int:
    """Bytes of a compressed vector: the largest divisor of ``dim`` up to a quarter of it.

    >>> codes(512), codes(100), codes(7)
    (128, 25, 1)
    """
    return max(n for n in range(1, max(1, dim // 4) + 1) if dim % n == 0)


def factory(asked: str, count: int, dim: int, memory: int | None = None) -> str:
    """The factory string of FAISS for the type ``asked``, for ``count`` vectors.

    >>> factory("auto", 1000, 512), factory("auto", 10**6, 512, memory=16 * 2**30)
    ('IDMap,Flat', 'IVF4096,Flat')
    >>> factory("auto", 10**8, 512, memory=16 * 2**30)
    'IVF32768,PQ128np'
    """
    if asked == "auto":
        enough = memory is None or count * dim * 4 <= MEMORY_SHARE * memory
        asked = "flat" if count <= FLAT_UP_TO else "ivf" if enough else "ivfpq"
    if asked == "flat" or count < 2 * _POINTS:
        return "IDMap,Flat"
    if asked == "hnsw":
        return "IDMap,HNSW32"
    if asked == "ivf":
        return f"IVF{lists(count)},Flat"
    if asked == "ivfpq":
        # An 8-bit code stands for one of 256 centres, so training needs at least 256 vectors. "np"
        # turns off polysemous training, which takes most of the time and is not needed here.
        return f"IVF{lists(count)},PQ{codes(dim)}np" if count >= 256 else "IDMap,Flat"
    return asked if "IVF" in asked or asked.startswith("IDMap") else f"IDMap,{asked}"


def check_type(asked: str) -> None:
    """Refuses a type that FAISS does not know, before any work is done."""
    if asked in TYPES:
        return
    if asked.isalpha() and asked.islower():
        raise unknown_name("type of index", asked, (*TYPES, "or a factory string of FAISS"))
    if "Refine" in asked or "RFlat" in asked:
        raise CouceError(
            f"leave out the refinement in {asked!r}; CouCE itself ranks the candidates by their"
            " uncompressed vectors"
        )
    try:
        import_library("faiss").index_factory(
            64, factory(asked, 10**6, 64), import_library("faiss").METRIC_INNER_PRODUCT
        )
    except (RuntimeError, AssertionError):
        raise CouceError(
            f"FAISS knows no index type {asked!r}; choose one of {', '.join(TYPES)}"
        ) from None


def build(
    structure: Structure, count: int, dim: int, blocks: Callable[[], Blocks], memory: int | None
) -> Built:
    """Builds a FAISS index of all vectors, and tunes and measures its search.

    Each call of ``blocks`` yields all vectors again, so that they are never all in memory. Some
    vectors are held out as queries of the measurement, and are added to the index after it.
    """
    faiss = import_library("faiss")
    name = factory(structure.asked, count, dim, memory)
    try:
        index = faiss.index_factory(dim, name, faiss.METRIC_INNER_PRODUCT)
    except RuntimeError:
        raise CouceError(
            f"FAISS cannot build {name!r} for vectors of {dim} dimensions; choose another --type"
        ) from None
    inner = innermost(index)
    # Whether the scores of the index are the true cosines.
    exact = not inner.transformed and (name.endswith("Flat") or inner.kind == "hnsw")
    rng = np.random.default_rng(0)
    held_count = 0 if inner.kind == "flat" else min(_QUERIES, count // 20)
    picked = rng.permutation(count)
    held_rows = np.sort(picked[:held_count])
    if not index.is_trained:
        sample = np.sort(picked[held_count : held_count + _training_points(index, count)])
        _train(index, _take(blocks(), sample, dim)[1])
    if inner.kind == "hnsw":
        inner.index.hnsw.efConstruction = 100
    truth = _Nearest(_take(blocks(), held_rows, dim)[1]) if held_count else None
    held: list[tuple[Numbers, Vectors]] = []
    seen = 0
    for numbers, vectors in blocks():
        mask = np.isin(np.arange(seen, seen + len(numbers)), held_rows, assume_unique=True)
        seen += len(numbers)
        held.append((numbers[mask], vectors[mask]))
        if not mask.all():
            index.add_with_ids(np.ascontiguousarray(vectors[~mask]), numbers[~mask])
            if truth is not None:
                truth.see(numbers[~mask], vectors[~mask])
    tuned = structure.model_copy(
        update={"factory": name, "effort": 0, "refine": 0, "built_for": count, "measured": None}
    )
    if truth is not None:
        tuned = _tune(index, tuned, truth, exact)
        for numbers, vectors in held:
            if len(numbers):
                index.add_with_ids(np.ascontiguousarray(vectors), numbers)
    return Built(index, tuned)


class Inner(NamedTuple):
    """The FAISS index inside its wrappers. It takes the search parameters."""

    kind: str  # ivf, hnsw, flat or other
    index: Any
    transformed: bool  # whether a wrapper rotates the vectors or reduces their dimension


def innermost(index: Any) -> Inner:
    """Finds the index inside all wrappers."""
    faiss = import_library("faiss")
    found, transformed = faiss.downcast_index(index), False
    while True:
        if isinstance(found, faiss.IndexPreTransform):
            found, transformed = faiss.downcast_index(found.index), True
        elif isinstance(found, faiss.IndexIDMap):  # or its subclass IndexIDMap2
            found = faiss.downcast_index(found.index)
        else:
            break
    kinds = {"ivf": faiss.IndexIVF, "hnsw": faiss.IndexHNSW, "flat": faiss.IndexFlat}
    kind = next((name for name, cls in kinds.items() if isinstance(found, cls)), "other")
    return Inner(kind, found, transformed)


def parameters(inner: Inner, effort: int, selector: Any = None) -> Any:
    """The parameters of one search: its effort, and the selector of the allowed rows.

    The index itself is not changed, so several threads can search it.
    """
    faiss = import_library("faiss")
    options = {} if selector is None else {"sel": selector}
    if inner.kind == "ivf":
        found = faiss.SearchParametersIVF(nprobe=max(1, min(effort, inner.index.nlist)), **options)
    elif inner.kind == "hnsw":
        found = faiss.SearchParametersHNSW(efSearch=max(16, effort), **options)
    elif selector is None:
        return None
    else:
        found = faiss.SearchParameters(**options)
    return faiss.SearchParametersPreTransform(index_params=found) if inner.transformed else found


def search(index: Any, queries: Vectors, k: int, chosen: Any) -> tuple[Vectors, Numbers]:
    """Searches a FAISS index with the given :func:`parameters`.

    pytorch-metric-learning imports ``faiss.contrib.torch_utils``. It replaces the method ``search``
    by one without parameters, and keeps the original as ``search_numpy``.
    """
    return getattr(index, "search_numpy", index.search)(queries, k, params=chosen)


def most_effort(inner: Inner) -> int:
    """The highest effort: all inverted lists, or for a graph a limit that is large enough."""
    return int(inner.index.nlist) if inner.kind == "ivf" else 4096 if inner.kind == "hnsw" else 0


class _Nearest:
    """Finds the true nearest neighbours of some queries among vectors that come in blocks."""

    def __init__(self, queries: Vectors) -> None:
        self.queries = queries
        self.scores = np.full((len(queries), K), -np.inf, np.float32)
        self.numbers = np.full((len(queries), K), -1, np.int64)

    def see(self, numbers: Numbers, vectors: Vectors) -> None:
        faiss = import_library("faiss")
        k = min(K, len(vectors))
        scores, at = faiss.knn(self.queries, vectors, k, metric=faiss.METRIC_INNER_PRODUCT)
        both = np.concatenate([self.scores, scores], axis=1)
        names = np.concatenate([self.numbers, numbers[at]], axis=1)
        order = np.argsort(-both, axis=1, kind="stable")[:, :K]
        self.scores = np.take_along_axis(both, order, axis=1)
        self.numbers = np.take_along_axis(names, order, axis=1)

    def recall(self, found: Numbers) -> float:
        """The share of true neighbours in ``found`` (n, ≥ K), the hits of the first n queries."""
        true = self.numbers[: len(found)]
        hits = (found[:, :, None] == true[:, None, :]) & (true >= 0)[:, None, :]
        return float(hits.any(axis=1).sum() / max(1, np.count_nonzero(true >= 0)))


def _tune(index: Any, structure: Structure, truth: _Nearest, exact: bool) -> Structure:
    """Finds the least effort that reaches the recall, and measures it.

    Other queries will do a little worse than these. So the goal is higher than the recall asked
    for, by a quarter of the recall that may be lost.
    """
    inner = innermost(index)
    goal = structure.recall + (1 - structure.recall) / 4
    most = most_effort(inner)

    def found(effort: int, refine: int, few: int | None = None) -> float:
        # More than K candidates are ranked by their uncompressed vectors later. So a true neighbour
        # counts as found if it is among the candidates.
        wide = K * max(1, refine)
        _, numbers = search(index, truth.queries[:few], wide, parameters(inner, effort))
        return truth.recall(numbers)

    refine = 0 if exact else 4
    # The number of candidates is chosen with a search in all lists. It is slow, so queries are few.
    while not exact and refine < 64 and found(most, refine, _SINGLE) < goal:
        refine *= 2
    low, high = 0, min(1, most)
    recall = found(high, refine)
    while recall < goal and high < most:
        low, high = high, min(2 * high, most)
        recall = found(high, refine)
    # A binary search: at low the goal is missed, and at high it is reached if that is possible.
    while recall >= goal and high - low > max(1, low // 16):
        middle = (low + high) // 2
        reached = found(middle, refine)
        if reached >= goal:
            high, recall = middle, reached
        else:
            low = middle
    effort = high
    measured = Measured(
        recall=recall,
        k=K,
        queries=len(truth.queries),
        milliseconds=_milliseconds(index, truth.queries, parameters(inner, effort)),
        exact_milliseconds=_exact_milliseconds(index, truth.queries),
        bytes=0,  # set when the file is written
        reached=recall >= structure.recall,
    )
    return structure.model_copy(update={"effort": effort, "refine": refine, "measured": measured})


def _milliseconds(index: Any, queries: Vectors, chosen: Any) -> float:
    """The median time of a single query."""
    times = []
    for query in queries[:_SINGLE, None]:
        start = time.perf_counter()
        search(index, query, K, chosen)
        times.append(time.perf_counter() - start)
    return 1000 * statistics.median(times)


def _exact_milliseconds(index: Any, queries: Vectors) -> float | None:
    """The median time of an exact search, or None if the index has no uncompressed vectors."""
    inner = innermost(index)
    few = queries[:10]
    if inner.kind == "ivf" and isinstance(inner.index, import_library("faiss").IndexIVFFlat):
        return _milliseconds(index, few, parameters(inner, inner.index.nlist))
    if inner.kind == "hnsw" and not inner.transformed:
        storage = import_library("faiss").downcast_index(inner.index.storage)
        return _milliseconds(storage, few, None)
    return None


def _training_points(index: Any, count: int) -> int:
    """The number of vectors for the training."""
    inner = innermost(index)
    wanted = _POINTS * (inner.index.nlist if inner.kind == "ivf" else 256)
    return min(count, max(wanted, 256 * _POINTS))


def _train(index: Any, sample: Vectors) -> None:
    faiss = import_library("faiss")
    inner = innermost(index)
    gpus = faiss.get_num_gpus() if hasattr(faiss, "get_num_gpus") else 0
    if inner.kind == "ivf":
        # Without this, FAISS warns at every build of a small gallery.
        inner.index.cp.min_points_per_centroid = 1
        if hasattr(inner.index, "pq"):
            inner.index.pq.cp.min_points_per_centroid = 1
        if gpus and not inner.transformed:
            flat = faiss.IndexFlatIP(inner.index.d)
            inner.index.clustering_index = faiss.index_cpu_to_all_gpus(flat)
    try:
        index.train(sample)
    except RuntimeError as error:
        reason = str(error).splitlines()[0].split(": ")[-1]
        raise CouceError(
            f"FAISS cannot train its structure with {len(sample)} vectors ({reason}); choose"
            " another --type"
        ) from None


def _take(blocks: Blocks, rows: Numbers, dim: int) -> tuple[Numbers, Vectors]:
    """The numbers and vectors at the places ``rows`` (sorted) of all blocks together."""
    numbers, vectors = np.empty(len(rows), np.int64), np.empty((len(rows), dim), np.float32)
    seen = filled = 0
    for block_numbers, block in blocks:
        end = int(np.searchsorted(rows, seen + len(block)))
        at = rows[filled:end] - seen
        numbers[filled:end], vectors[filled:end] = block_numbers[at], block[at]
        seen, filled = seen + len(block), end
        if filled == len(rows):
            break
    return numbers[:filled], vectors[:filled]
