"""Any embedding model as a function from prepared pixels to embeddings of unit length."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from couce.embedder import Embedder
from couce.errors import CouceError
from couce.models.paths import checkpoint_of, unique_names
from couce.preprocess import Preprocess


class Model(NamedTuple):
    name: str
    preprocess: Preprocess
    run: Callable[[NDArray[np.uint8]], NDArray[np.float32]]  # (N, crop, crop, 3) to (N, d)


def open_models(paths: Sequence[Path], preprocess: Preprocess | None) -> list[Model]:
    """Opens the models. ``preprocess`` is for ONNX models that do not describe their own."""
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
    return _open_checkpoint(checkpoint_of(path), name)


def _open_checkpoint(path: Path, name: str) -> Model:
    """Opens a checkpoint. No other part of the audit needs torch."""
    import torch
    import torch.nn.functional as F

    from couce.checkpoint import load_network
    from couce.machine.device import choose_device
    from couce.network import Normalise

    network, own, _ = load_network(path)
    device = choose_device()
    network.on(device).eval()
    normalise = Normalise(own).to(device)

    @torch.inference_mode()
    def run(pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        embeddings = network(normalise(torch.from_numpy(pixels).to(device)))
        return F.normalize(embeddings.float(), dim=1).cpu().numpy()

    return Model(name, own, run)
