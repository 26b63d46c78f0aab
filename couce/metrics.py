"""The metrics R@k, R-Precision, MAP@R and NMI, computed exactly and without torch.

The definitions are those of pytorch-metric-learning's AccuracyCalculator (Musgrave et al., A Metric
Learning Reality Check, ECCV 2020). Neighbours are ranked by Euclidean distance. For embeddings of
unit length this is the ranking by cosine.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from couce.errors import CouceError
from couce.machine.libraries import import_library

# faiss multiplies this many queries at a time, so blocks are multiples of it.
_QUERIES = 4096
# The memory that one block of queries may use for its neighbours and their evaluation.
_BLOCK_BYTES = 256 * 2**20
_BYTES_PER_NEIGHBOUR = 40


def retrieval_metrics(
    embeddings: ArrayLike,
    labels: ArrayLike,
    ks: Sequence[int] = (1, 2),
    nmi: bool = True,
    seed: int = 1234,
) -> dict[str, float]:
    """Searches each row of ``embeddings`` (N, d) among all others. The metrics are fractions.

    ``R@k`` is the share of queries with an item of their own class among the first k neighbours.
    For a query whose class has R other items, ``RP`` is the share of the own class among the first
    R neighbours. ``MAP@R`` is the sum of the precisions at each hit among these R, divided by R.
    The query itself is removed by its index, never by its rank. A query that is alone in its class
    is left out of these metrics. If no query is left, they are NaN. ``NMI`` compares the labels
    with the clusters of k-means, which has as many clusters as there are classes.

    >>> retrieval_metrics([[0.0], [0.1], [5.0], [5.1]], ["a", "a", "b", "b"], ks=(1,), nmi=False)
    {'R@1': 1.0, 'RP': 1.0, 'MAP@R': 1.0}
    """
    vectors, classes = _checked(embeddings, labels, "embeddings")
    names, codes, counts = np.unique(classes, return_inverse=True, return_counts=True)
    result = _evaluate(vectors, codes, vectors, codes, counts[codes] - 1, ks, includes_self=True)
    if nmi:
        result["NMI"] = normalised_mutual_information(codes, _cluster(vectors, len(names), seed))
    return result


def clustering_nmi(embeddings: ArrayLike, labels: ArrayLike, seed: int = 1234) -> float:
    """The NMI between the labels and the clusters of k-means, as many clusters as classes."""
    vectors, classes = _checked(embeddings, labels, "embeddings")
    names, codes = np.unique(classes, return_inverse=True)
    return normalised_mutual_information(codes, _cluster(vectors, len(names), seed))


def query_gallery_metrics(
    queries: ArrayLike,
    query_labels: ArrayLike,
    gallery: ArrayLike,
    gallery_labels: ArrayLike,
    ks: Sequence[int] = (1, 2),
) -> dict[str, float]:
    """R@k, RP and MAP@R of ``queries`` (Q, d) searched in a separate ``gallery`` (G, d).

    A query whose class is not in the gallery is left out.
    """
    xq, query_classes = _checked(queries, query_labels, "queries")
    xb, gallery_classes = _checked(gallery, gallery_labels, "gallery")
    if xq.shape[1] != xb.shape[1]:
        raise CouceError(
            f"queries have {xq.shape[1]} dimensions but the gallery has {xb.shape[1]}:"
            " embed both with the same model"
        )
    both = np.concatenate([query_classes, gallery_classes])
    names, codes = np.unique(both, return_inverse=True)
    query_codes, gallery_codes = codes[: len(xq)], codes[len(xq) :]
    relevant = np.bincount(gallery_codes, minlength=len(names))[query_codes]
    return _evaluate(xq, query_codes, xb, gallery_codes, relevant, ks, includes_self=False)


def normalised_mutual_information(a: NDArray[np.intp], b: NDArray[np.intp]) -> float:
    """2·I(a; b) / (H(a) + H(b)) of two labellings (N,), which are integers from 0.

    >>> normalised_mutual_information(np.array([0, 0, 1, 1]), np.array([1, 1, 0, 0]))
    1.0
    """
    size_a, size_b = np.bincount(a), np.bincount(b)
    pairs, joint = np.unique(a * len(size_b) + b, return_counts=True)
    expected = size_a[pairs // len(size_b)] * (size_b[pairs % len(size_b)] / len(a))
    information = float(np.sum(joint / len(a) * np.log(joint / expected)))
    entropies = _entropy(size_a) + _entropy(size_b)
    # Without entropy, each labelling is a single group, and the two agree.
    return max(0.0, 2 * information / entropies) if entropies > 0 else 1.0


def _entropy(sizes: NDArray[np.intp]) -> float:
    shares = sizes[sizes > 0] / sizes.sum()
    return float(-np.sum(shares * np.log(shares)))


def _evaluate(
    queries: NDArray[np.float32],
    query_codes: NDArray[np.intp],
    gallery: NDArray[np.float32],
    gallery_codes: NDArray[np.intp],
    relevant: NDArray[np.intp],  # (Q,), how many items of its class each query can find
    ks: Sequence[int],
    includes_self: bool,
) -> dict[str, float]:
    if not ks or min(ks) < 1:
        raise CouceError(f"ks must be one or more whole numbers from 1, not {tuple(ks)}")
    found = int(np.count_nonzero(relevant))
    hits_at = np.zeros(len(ks))
    precision = average_precision = 0.0
    depth = min(max(int(relevant.max()), *ks), len(gallery) - includes_self)
    ranks = np.arange(1, depth + 1)
    for block, neighbours in _search(queries, gallery, depth, includes_self):
        r = relevant[block]
        hits = gallery_codes[neighbours] == query_codes[block, None]  # (B, depth)
        hits &= (r > 0)[:, None]
        hits_at += [np.count_nonzero(hits[:, :k].any(axis=1)) for k in ks]
        hits &= ranks <= r[:, None]
        share = 1 / np.maximum(r, 1)
        precision += float(hits.sum(axis=1) @ share)
        average_precision += float((np.cumsum(hits, axis=1) * hits / ranks).sum(axis=1) @ share)
    total = found or np.nan
    result = {f"R@{k}": float(count / total) for k, count in zip(ks, hits_at, strict=True)}
    return result | {"RP": precision / total, "MAP@R": average_precision / total}


def _search(
    queries: NDArray[np.float32], gallery: NDArray[np.float32], depth: int, includes_self: bool
) -> Iterator[tuple[slice, NDArray[np.int64]]]:
    """For each block of queries, the indices (B, depth) of their neighbours in ``gallery``."""
    faiss = import_library("faiss")
    wanted = depth + includes_self
    rows = max(1, _BLOCK_BYTES // (_BYTES_PER_NEIGHBOUR * max(wanted, 1)))
    rows = rows // _QUERIES * _QUERIES or rows
    for start in range(0, len(queries), rows):
        block = slice(start, min(start + rows, len(queries)))
        _, neighbours = faiss.knn(queries[block], gallery, wanted)
        if includes_self:
            own = neighbours == np.arange(block.start, block.stop)[:, None]
            # If many rows are equal, the query itself may be missing here. Then the last
            # neighbour is dropped.
            own[~own.any(axis=1), -1] = True
            neighbours = neighbours[~own].reshape(len(own), depth)
        yield block, neighbours


def _cluster(vectors: NDArray[np.float32], clusters: int, seed: int) -> NDArray[np.intp]:
    # min_points_per_centroid=1 silences a warning about small clusters, which are normal here.
    kmeans = import_library("faiss").Kmeans(
        vectors.shape[1], clusters, niter=20, seed=seed, min_points_per_centroid=1
    )
    kmeans.train(vectors)
    _, nearest = kmeans.index.search(vectors, 1)
    return nearest[:, 0]


def _checked(
    embeddings: ArrayLike, labels: ArrayLike, name: str
) -> tuple[NDArray[np.float32], NDArray[np.generic]]:
    vectors = np.ascontiguousarray(embeddings, dtype=np.float32)
    classes = np.asarray(labels)
    if vectors.ndim != 2 or not vectors.size or classes.shape != vectors.shape[:1]:
        raise CouceError(
            f"{name} must be an array (N, d) with one label for each row and N and d at least 1,"
            f" not {vectors.shape} with labels {classes.shape}"
        )
    # The sum is finite only if all numbers are, and needs no second array of the same size.
    with np.errstate(invalid="ignore"):
        total = vectors.sum(dtype=np.float64)
    if not np.isfinite(total):
        raise CouceError(f"{name} contain NaN or infinity")
    return vectors, classes
