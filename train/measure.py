"""`couce evaluate`: the metrics of a checkpoint or a model on a test half, or of saved embeddings."""

import warnings
import zipfile
from pathlib import Path

import numpy as np
import torch

from couce.checkpoint import load_network
from couce.embedder import Embedder
from couce.errors import CouceError
from couce.metrics import retrieval_metrics
from couce.preprocess import ImageError, Preprocess
from couce.train.data import open_dataset
from couce.train.data.base import Split
from couce.train.evaluate import measure
from couce.train.images import ImageStore
from couce.train.processes import Processes

KS = (1, 2, 4, 8)


def measure_file(
    model: Path,
    dataset: str,
    root: Path | None,
    train_classes: int | None,
    confounding: float,
    preprocess: Preprocess | None = None,
) -> dict[str, float]:
    """``model``: a checkpoint, an ONNX model, or an .npz of ``embeddings`` (N, d) and ``labels`` (N,).

    ``preprocess`` says how images are prepared for an ONNX model that does not say so itself.
    """
    if preprocess is not None and model.suffix != ".onnx":
        raise CouceError(f"--preprocess is for ONNX models; {model.name} brings its own")
    if model.suffix == ".npz":
        return _measure_embeddings(model)
    if model.suffix == ".onnx":
        embedder = Embedder(model, preprocess=preprocess)
        test = open_dataset(dataset, root, train_classes, confounding).test
        return _measure_onnx(embedder, test)
    network, preprocess, _ = load_network(model)
    device = Processes().device("auto")
    network.to(device).to(memory_format=torch.channels_last)
    test = open_dataset(dataset, root, train_classes, confounding).test
    return measure(network, ImageStore(test, preprocess), device, KS)


def _measure_onnx(embedder: Embedder, test: Split) -> dict[str, float]:
    """As :func:`measure`: images that cannot be decoded are warned of and left out."""
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


def _measure_embeddings(path: Path) -> dict[str, float]:
    try:
        with np.load(path, allow_pickle=False) as arrays:
            embeddings, labels = arrays["embeddings"], arrays["labels"]
    except FileNotFoundError:
        raise CouceError(f"there is no file {path}") from None
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise CouceError(f"{path} does not hold arrays embeddings and labels: {error}") from None
    if not np.issubdtype(embeddings.dtype, np.number):
        raise CouceError(f"the embeddings in {path} are {embeddings.dtype}, not numbers")
    return retrieval_metrics(embeddings, labels, KS)
