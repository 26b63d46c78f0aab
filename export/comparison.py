"""Compares models of fewer bits with the model in float32: size, speed and retrieval."""

import logging
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
from numpy.typing import NDArray

from couce.embedder import Embedder
from couce.errors import CouceError
from couce.export.parity import open_session
from couce.export.quantisation import harm_by_layer, to_int8
from couce.export.write import serialise
from couce.machine.cores import usable_cores
from couce.metrics import retrieval_metrics
from couce.models.info import ModelInfo
from couce.preprocess import ImageError

log = logging.getLogger(__name__)

MOST_LOST = 0.005  # the largest loss of R@1 for which all layers are quantised
# The smallest allowed cosine between the embeddings of an image with fewer bits and in float32.
LEAST_COSINE = 0.95


class RetrievalSet(NamedTuple):
    """Images and their classes, on which retrieval is measured."""

    name: str
    paths: Sequence[Path]
    labels: NDArray[np.intp]


class Comparison:
    """Compares models of fewer bits with the model in float32 (``plain``)."""

    def __init__(
        self, plain: bytes, pixels: NDArray[np.uint8], labelled: RetrievalSet | None
    ) -> None:
        self._plain, self._size = _opened(plain), len(plain)
        self._pixels, self._labelled = pixels, labelled
        self._rows = self._plain.run(pixels)
        self._before: dict[str, float] | None = None

    def __call__(self, model: bytes, precision: str) -> dict[str, float] | None:
        """How much of each metric ``model`` loses, or None without a labelled set.

        An embedding that differs too much from that in float32 is an error.
        """
        reduced = _opened(model)
        cosines = (reduced.run(self._pixels) * self._rows).sum(axis=1)
        if cosines.min() < LEAST_COSINE:
            raise CouceError(
                f"an embedding in {precision} has a cosine of {cosines.min():.4f} to the one in"
                f" fp32, and the least allowed is {LEAST_COSINE}; nothing was written, choose"
                " another --precision"
            )
        log.info(
            f"{precision}: {len(model) / 1e6:.1f} MB instead of {self._size / 1e6:.1f},"
            f" {_speed(self._plain, reduced):.2f} times the images/s of fp32 on"
            f" {reduced.provider}, cosine to fp32 at least {cosines.min():.4f}"
        )
        if self._labelled is None:
            log.info("retrieval is not measured without a labelled set; give one with --dataset")
            return None
        before = self._before = self._before or _measure(self._plain, self._labelled)
        after = _measure(reduced, self._labelled)
        listed = ", ".join(
            f"{name} {100 * before[name]:.2f} -> {100 * after[name]:.2f}" for name in before
        )
        log.info(f"{self._labelled.name}, {len(self._labelled.paths)} images: {listed}")
        return {name: before[name] - after[name] for name in before}


def _opened(model: bytes) -> Embedder:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        path.write_bytes(model)
        return Embedder(path)


def _measure(embedder: Embedder, labelled: RetrievalSet) -> dict[str, float]:
    """The retrieval metrics on the images that can be decoded."""
    found = [
        (row, label)
        for row, label in zip(embedder.stream(labelled.paths), labelled.labels, strict=True)
        if not isinstance(row, ImageError)
    ]
    rows, labels = zip(*found, strict=True)
    return retrieval_metrics(np.stack(rows), np.array(labels))


def _speed(one: Embedder, other: Embedder, rounds: int = 5, batch: int = 16) -> float:
    """The images/s of ``other`` divided by those of ``one``. Both take turns."""
    crop = one.preprocess.crop
    pixels = np.random.default_rng(0).integers(0, 256, (batch, crop, crop, 3), np.uint8)
    times: dict[Embedder, list[float]] = {one: [], other: []}
    for turn in range(rounds + 1):
        for each in (one, other):
            start = time.perf_counter()
            each.run(pixels)
            if turn:
                times[each].append(time.perf_counter() - start)
    return float(np.median(times[one]) / np.median(times[other]))


def quantise(
    proto: onnx.ModelProto,
    feeds: NDArray[Any],
    info: ModelInfo,
    compare: Callable[[bytes, str], dict[str, float] | None],
) -> tuple[bytes, dict[str, float] | None]:
    """Quantises the model. Returns its bytes, and what it loses as ``compare`` returned it.

    If the loss of R@1 is above MOST_LOST, the layers that harm the most stay in float32.
    """
    skipped: list[str] = []
    worst: list[str] = []
    while True:
        written = serialise(to_int8(proto, feeds, skipped), info)
        lost = compare(written, "int8")
        if lost is None or lost["R@1"] <= MOST_LOST:
            return written, lost
        if not worst:
            log.info("quantising one layer at a time, to find those that cause the loss of R@1")
            harm = harm_by_layer(proto, feeds[:32], feeds[:64], _run)
            worst = list(harm)
            listed = ", ".join(f"{layer} {value:.1e}" for layer, value in list(harm.items())[:4])
            log.info(f"the worst layers by 1 - cosine: {listed}")
        if len(skipped) == len(worst) - 1:
            raise CouceError(
                f"int8 loses {100 * lost['R@1']:.2f} points of R@1, even if only one layer is"
                " quantised; calibrate with images like those that will be searched"
            )
        skipped = worst[: len(skipped) + 1]
        log.info(f"left in float32: {', '.join(skipped)}")


def _run(proto: onnx.ModelProto, feeds: NDArray[Any]) -> NDArray[np.float32]:
    session = open_session(proto, usable_cores())
    parts = [session.run(None, {"image": feeds[i : i + 16]})[0] for i in range(0, len(feeds), 16)]
    return np.concatenate(parts)
