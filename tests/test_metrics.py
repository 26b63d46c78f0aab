"""The metrics against pytorch-metric-learning's AccuracyCalculator, and against plain loops."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator

from couce import metrics
from couce.errors import CouceError
from couce.metrics import (
    normalised_mutual_information,
    query_gallery_metrics,
    retrieval_metrics,
)

NAMES = {
    "precision_at_1": "R@1",
    "r_precision": "RP",
    "mean_average_precision_at_r": "MAP@R",
    "NMI": "NMI",
}

Set = tuple[NDArray[np.float32], NDArray[np.intp]]


def by_pml(*arguments: Any, nmi: bool = True) -> dict[str, float]:
    include = tuple(NAMES) if nmi else tuple(NAMES)[:3]
    calculator = AccuracyCalculator(include=include, k="max_bin_count", device=torch.device("cpu"))
    result = calculator.get_accuracy(*(torch.as_tensor(a) for a in arguments))
    return {NAMES[name]: value for name, value in result.items()}


def unit_rows(rng: np.random.Generator, labels: NDArray[np.intp], spread: float) -> Set:
    centres = rng.standard_normal((labels.max() + 1, 24))
    x = centres[labels] + spread * rng.standard_normal((len(labels), 24))
    return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32), labels


def balanced(rng: np.random.Generator) -> Set:
    return unit_rows(rng, np.repeat(np.arange(20), 15), 1.5)


def unequal(rng: np.random.Generator) -> Set:
    return unit_rows(rng, np.repeat(np.arange(25), rng.integers(2, 40, 25)), 1.5)


def singles(rng: np.random.Generator) -> Set:
    return unit_rows(rng, np.concatenate([np.repeat(np.arange(12), 9), np.arange(12, 40)]), 1.5)


def ties(rng: np.random.Generator) -> Set:
    """Each embedding is there four times, and not all of the four have the same label."""
    x, labels = unit_rows(rng, np.repeat(np.arange(10), 6), 1.5)
    return np.repeat(x, 4, axis=0), np.repeat(labels, 4) * (rng.random(240) < 0.9)


def all_equal(rng: np.random.Generator) -> Set:
    return np.ones((60, 4), dtype=np.float32), rng.integers(0, 5, 60)


def not_unit(rng: np.random.Generator) -> Set:
    x, labels = balanced(rng)
    return x * rng.uniform(0.1, 10, (len(x), 1)).astype(np.float32), labels


@pytest.mark.parametrize("make", [balanced, unequal, singles, ties, all_equal, not_unit])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_equals_pytorch_metric_learning(make: Any, seed: int) -> None:
    x, labels = make(np.random.default_rng(seed))
    order = np.random.default_rng(seed).permutation(len(x))
    x, labels = x[order], labels[order]
    actual, expected = retrieval_metrics(x, labels, ks=(1,)), by_pml(x, labels)
    for name in ("R@1", "RP", "MAP@R"):
        assert actual[name] == pytest.approx(expected[name], abs=1e-6), name
    assert actual["NMI"] == pytest.approx(expected["NMI"], abs=1e-3)


@pytest.mark.parametrize("seed", [0, 1])
def test_separate_gallery_equals_pytorch_metric_learning(seed: int) -> None:
    rng = np.random.default_rng(seed)
    x, labels = singles(rng)
    order = rng.permutation(len(x))
    q, g = order[:50], order[50:]  # some queries' classes are not in the gallery
    actual = query_gallery_metrics(x[q], labels[q], x[g], labels[g], ks=(1,))
    expected = by_pml(x[q], labels[q], x[g], labels[g], nmi=False)
    assert actual == pytest.approx(expected, abs=1e-6)


def by_loops(x: NDArray[np.float32], labels: NDArray[np.intp], k: int) -> float:
    """R@k, which pytorch-metric-learning does not have."""
    found = asked = 0
    for i in range(len(x)):
        if np.count_nonzero(labels == labels[i]) < 2:
            continue
        others = [j for j in range(len(x)) if j != i]
        others.sort(key=lambda j: float(np.square(x[i].astype(float) - x[j]).sum()))
        asked += 1
        found += any(labels[j] == labels[i] for j in others[:k])
    return found / asked


@pytest.mark.parametrize("make", [balanced, singles])
def test_recall_equals_the_loops(make: Any) -> None:
    x, labels = make(np.random.default_rng(5))
    actual = retrieval_metrics(x, labels, ks=(1, 2, 4, 8, 100_000), nmi=False)
    for k in (1, 2, 4, 8):
        assert actual[f"R@{k}"] == pytest.approx(by_loops(x, labels, k))
    assert actual["R@100000"] == 1.0  # k is larger than the number of items


@pytest.mark.parametrize("make", [unequal, singles])
def test_blocks_change_nothing(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    x, labels = make(np.random.default_rng(6))
    whole = retrieval_metrics(x, labels, nmi=False)
    monkeypatch.setattr(metrics, "_BLOCK_BYTES", 50_000)
    blocks = list(metrics._search(x, x, 40, True))
    assert len(blocks) > 3
    assert sum(len(neighbours) for _, neighbours in blocks) == len(x)
    assert retrieval_metrics(x, labels, nmi=False) == pytest.approx(whole, abs=1e-12)


def test_memory_of_a_block_is_bounded_for_any_size_of_class() -> None:
    """All items are of one class: N² neighbours in all, but only those of a block at a time."""
    n = 3000
    x = np.random.default_rng(0).standard_normal((n, 4), dtype=np.float32)
    sizes = [neighbours.size for _, neighbours in metrics._search(x, x, n - 1, True)]
    assert sum(sizes) == n * (n - 1)
    assert max(sizes) * metrics._BYTES_PER_NEIGHBOUR <= metrics._BLOCK_BYTES


def test_nothing_to_find_is_nan() -> None:
    result = retrieval_metrics(np.eye(4), np.arange(4), nmi=False)
    assert all(math.isnan(value) for value in result.values())


def test_labels_may_be_words() -> None:
    x = [[0.0], [0.1], [5.0], [5.1]]
    assert retrieval_metrics(x, ["cat", "cat", "dog", "dog"])["NMI"] == pytest.approx(1.0)


def test_mutual_information_equals_scikit_learn() -> None:
    from sklearn.metrics import normalized_mutual_info_score

    rng = np.random.default_rng(0)
    for a, b in [
        (rng.integers(0, 7, 200), rng.integers(0, 5, 200)),
        (rng.integers(0, 90, 200), rng.integers(0, 100, 200)),
        (np.zeros(9, int), np.zeros(9, int)),
        (np.zeros(9, int), np.arange(9)),
        (np.arange(9), np.arange(9)[::-1]),
    ]:
        expected = normalized_mutual_info_score(a, b)
        assert normalised_mutual_information(a, b) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("x", "labels", "message"),
    [
        (np.ones((3, 2)), [0, 1], "one label for each row"),
        (np.ones(3), [0, 1, 2], "one label for each row"),
        (np.ones((0, 2)), [], "at least 1"),
        ([[np.nan, 1.0], [0.0, 1.0]], [0, 0], "NaN or infinity"),
        ([[np.inf, 1.0], [-np.inf, 1.0]], [0, 0], "NaN or infinity"),
    ],
)
def test_wrong_input_is_one_sentence(x: Any, labels: Any, message: str) -> None:
    with pytest.raises(CouceError, match=message):
        retrieval_metrics(x, labels)


def test_wrong_ks_and_dimensions_are_named() -> None:
    with pytest.raises(CouceError, match=r"not \(0, 1\)"):
        retrieval_metrics(np.eye(2), [0, 0], ks=(0, 1))
    with pytest.raises(CouceError, match="2 dimensions but the gallery has 3"):
        query_gallery_metrics(np.eye(2), [0, 1], np.eye(3), [0, 1, 2])
