"""Retrieval metrics of a model on a test half: `couce evaluate`, and the same call from Python.

Only checkpoints need torch. ONNX models and saved embeddings can be evaluated without it.
"""

import os
import warnings
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from couce.callable import make_callable
from couce.data import open_dataset
from couce.data.base import Split
from couce.data.images import ImageStore
from couce.embedder import Embedder
from couce.errors import CouceError
from couce.metrics import retrieval_metrics
from couce.preprocess import ImageError, Preprocess

if TYPE_CHECKING:
    import torch

    from couce.network import EmbeddingNetwork

KS = (1, 2, 4, 8)


def evaluate(
    model: str | os.PathLike[str],
    dataset: str = "demo",
    *,
    data: str | Path | None = None,
    train_classes: int | None = None,
    confounding: float = 0.9,
    preprocess: Preprocess | None = None,
) -> dict[str, float]:
    """R@1, R@2, R@4, R@8, RP, MAP@R and NMI, as fractions.

    Args:
        model: a checkpoint (.pt), a run (its best checkpoint), an ONNX model, or an .npz file with
            ``embeddings`` (N, d) and ``labels`` (N,), for which ``dataset`` is ignored.
        dataset: a name (cub, cars, sop, demo), a folder of class folders, or a CSV list. Its test
            half is searched.
        data: where the data set is, if it is not in ``data/NAME``.
        train_classes: how many classes form the training half of a folder without halves.
        confounding: the share of the demo set's training images that show the background and the
            light of their class.
        preprocess: how images are prepared for an ONNX model that does not describe it itself.
    """
    path = Path(model)
    if preprocess is not None and path.suffix != ".onnx":
        raise CouceError(f"--preprocess is for ONNX models; leave it out for {path.name}")
    if path.suffix == ".npz":
        return _evaluate_embeddings(path)
    if path.suffix == ".onnx":
        embedder = Embedder(path, preprocess=preprocess)
        return _evaluate_onnx(
            embedder, open_dataset(dataset, data, train_classes, confounding).test
        )
    from couce.checkpoint import load_network
    from couce.machine.device import choose_device

    network, prepared, _ = load_network(path)
    device = choose_device()
    test = open_dataset(dataset, data, train_classes, confounding).test
    return evaluate_network(network.on(device), ImageStore(test, prepared), device, KS)


def evaluate_network(
    network: "EmbeddingNetwork",
    store: ImageStore,
    device: "torch.device",
    ks: Sequence[int] = (1, 2),
) -> dict[str, float]:
    """The metrics of a torch network on a split, without the images that cannot be decoded."""
    from couce.network import embed_images

    embeddings, decoded = embed_images(network, store, device)
    return retrieval_metrics(embeddings, store.split.labels[decoded], ks)


def _evaluate_onnx(embedder: Embedder, test: Split) -> dict[str, float]:
    """The metrics of an ONNX model, without the images that cannot be decoded (with a warning)."""
    rows, labels = [], []
    for label, row in zip(test.labels, embedder.stream(test.paths), strict=True):
        if isinstance(row, ImageError):
            warnings.warn(f"left out: {row}", stacklevel=2)
        else:
            rows.append(row)
            labels.append(label)
    if not rows:
        raise CouceError("none of the images could be read")
    return retrieval_metrics(rows, labels, KS)


def _evaluate_embeddings(path: Path) -> dict[str, float]:
    """The metrics of an .npz file that `couce embed` wrote."""
    try:
        with np.load(path, allow_pickle=False) as arrays:
            embeddings, labels = arrays["embeddings"], arrays["labels"]
    except FileNotFoundError:
        raise CouceError(f"there is no file {path}") from None
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise CouceError(
            f"{path} does not contain the arrays embeddings and labels: {error}"
        ) from None
    if not np.issubdtype(embeddings.dtype, np.number):
        raise CouceError(f"the embeddings in {path} must be numbers, not {embeddings.dtype}")
    return retrieval_metrics(embeddings, labels, KS)


make_callable(__name__, evaluate)
