"""`couce evaluate`: the metrics of a checkpoint on a test half, or of saved embeddings."""

import zipfile
from pathlib import Path

import numpy as np
import torch

from couce.checkpoint import load_network
from couce.errors import CouceError
from couce.metrics import retrieval_metrics
from couce.train.data import open_dataset
from couce.train.evaluate import measure
from couce.train.images import ImageStore
from couce.train.processes import Processes

KS = (1, 2, 4, 8)


def measure_file(
    model: Path, dataset: str, root: Path | None, train_classes: int | None, confounding: float
) -> dict[str, float]:
    """``model``: a checkpoint, or an .npz of ``embeddings`` (N, d) and ``labels`` (N,)."""
    if model.suffix == ".npz":
        return _measure_embeddings(model)
    network, preprocess, _ = load_network(model)
    device = Processes().device("auto")
    network.to(device).to(memory_format=torch.channels_last)
    test = open_dataset(dataset, root, train_classes, confounding).test
    return measure(network, ImageStore(test, preprocess), device, KS)


def _measure_embeddings(path: Path) -> dict[str, float]:
    try:
        with np.load(path, allow_pickle=False) as arrays:
            embeddings, labels = arrays["embeddings"], arrays["labels"]
    except FileNotFoundError:
        raise CouceError(f"there is no file {path}") from None
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise CouceError(f"{path} does not hold arrays embeddings and labels: {error}") from None
    return retrieval_metrics(embeddings, labels, KS)
