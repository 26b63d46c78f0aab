"""The choice of a structure, its tuning, and the measurement of its recall."""

from collections.abc import Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from couce.errors import CouceError
from couce.index.local.manifest import Structure
from couce.index.local.structures import build, check_type, factory, innermost, parameters, search

from .conftest import unit

Rows = NDArray[np.float32]


def clustered(count: int, dim: int = 32, seed: int = 0) -> Rows:
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(9).standard_normal((50, dim)).astype(np.float32)
    rows = centres[rng.integers(0, 50, count)]
    rows += 0.8 * rng.standard_normal(rows.shape).astype(np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


@pytest.mark.parametrize("kind", ["ivf", "hnsw", "ivfpq"])
def test_the_recall_that_is_kept_is_that_of_other_queries_too(kind: str) -> None:
    rows, queries = clustered(6000), clustered(300, seed=1)

    def blocks() -> Iterator[tuple[NDArray[np.int64], Rows]]:
        for start in range(0, 6000, 1000):
            yield np.arange(start, start + 1000) + 7, rows[start : start + 1000]

    found = build(Structure(asked=kind, recall=0.95), 6000, 32, blocks, None)
    measured = found.structure.measured
    assert found.index.ntotal == 6000
    assert measured is not None
    assert measured.queries == 300
    assert measured.recall >= 0.95
    inner = innermost(found.index)
    wide = 10 * max(1, found.structure.refine)
    _, numbers = search(found.index, queries, wide, parameters(inner, found.structure.effort))
    truth = np.argsort(-(queries @ rows.T), axis=1)[:, :10] + 7
    hits = [
        len(set(a) & set(b)) / 10 for a, b in zip(numbers.tolist(), truth.tolist(), strict=True)
    ]
    assert np.mean(hits) >= 0.93
    # The recall must not come from visiting all lists.
    if kind == "ivf":
        assert found.structure.effort < inner.index.nlist


def test_types_by_size() -> None:
    gigabyte = 2**30
    assert factory("auto", 50_000, 512, gigabyte) == "IDMap,Flat"
    assert factory("auto", 200_000, 512, gigabyte) == "IVF2048,Flat"
    assert factory("auto", 2_000_000, 512, gigabyte) == "IVF4096,PQ128np"
    assert factory("ivf", 20, 512) == "IDMap,Flat"  # too few vectors to train lists
    assert factory("PQ8", 1000, 32) == "IDMap,PQ8"


@pytest.mark.parametrize(
    ("asked", "words"),
    [("hsnw", "did you mean 'hnsw'"), ("IVF8,Flat,RFlat", "leave out"), ("IVFx", "FAISS knows no")],
)
def test_unknown_types_are_sentences(asked: str, words: str) -> None:
    with pytest.raises(CouceError, match=words):
        check_type(asked)


def test_a_structure_that_cannot_be_learned_is_a_sentence() -> None:
    rows = unit(300)

    def blocks() -> Iterator[tuple[NDArray[np.int64], Rows]]:
        yield np.arange(300), rows

    for kind, words in (("IVF4096,Flat", "cannot train"), ("PQ7", "cannot build")):
        with pytest.raises(CouceError, match=words) as caught:
            build(Structure(asked=kind), 300, 16, blocks, None)
        assert "\n" not in str(caught.value)


def test_what_other_libraries_do_to_faiss_does_no_harm() -> None:
    """pytorch-metric-learning replaces FAISS's search by one without parameters."""
    pytest.importorskip("torch", reason="needs the extra train")
    import faiss.contrib.torch_utils  # noqa: F401

    rows = unit(400)
    built = build(
        Structure(asked="ivf"), len(rows), rows.shape[1], lambda: [(np.arange(400), rows)], None
    )
    assert built.structure.measured is not None
    _, numbers = search(built.index, rows[:5], 1, parameters(innermost(built.index), 8))
    assert numbers[:, 0].tolist() == [0, 1, 2, 3, 4]
