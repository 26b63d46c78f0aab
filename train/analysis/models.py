"""Any embedding model, as what turns prepared pixels into unit rows."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from couce.checkpoint import load_network
from couce.embedder import Embedder
from couce.errors import CouceError
from couce.network import Normalise
from couce.preprocess import Preprocess
from couce.train.analysis.runs import checkpoint_of, unique_names
from couce.train.processes import Processes


class Model(NamedTuple):
    name: str
    preprocess: Preprocess
    run: Callable[[NDArray[np.uint8]], NDArray[np.float32]]  # (N, crop, crop, 3) to unit rows


def is_model(text: str) -> bool:
    """Whether an argument names a model: a checkpoint, an ONNX file or the folder of a run."""
    return Path(text).suffix in (".pt", ".onnx") or (Path(text) / "last.pt").is_file()


def open_models(paths: Sequence[Path], preprocess: Preprocess | None) -> list[Model]:
    """``preprocess``: for ONNX models that do not say themselves how images are to be prepared."""
    names = unique_names(paths)
    return [_open(path, name, preprocess) for path, name in zip(paths, names, strict=True)]


def _open(path: Path, name: str, preprocess: Preprocess | None) -> Model:
    if path.suffix == ".onnx":
        try:
            embedder = Embedder(path)
        except CouceError:
            if preprocess is None:
                raise
            embedder = Embedder(path, preprocess=preprocess)
        return Model(name, embedder.preprocess, embedder.run)
    network, own, _ = load_network(checkpoint_of(path))
    device = Processes().device("auto")
    network.to(device).to(memory_format=torch.channels_last).eval()
    normalise = Normalise(own).to(device)

    @torch.inference_mode()
    def run(pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        embeddings = network(normalise(torch.from_numpy(pixels).to(device)))
        return F.normalize(embeddings.float(), dim=1).cpu().numpy()

    return Model(name, own, run)
