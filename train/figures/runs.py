"""Opens a trained run: its network, its objective and its images."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from couce import plugins
from couce.checkpoint import load_network
from couce.data import open_dataset
from couce.data.base import DataSet, Split
from couce.data.images import ImageStore
from couce.errors import CouceError
from couce.losses import build_loss
from couce.machine.cores import usable_cores
from couce.machine.device import choose_device
from couce.method import CouCE
from couce.models.paths import checkpoint_of, unique_names
from couce.network import EmbeddingNetwork, Normalise, embed_images
from couce.preprocess import Preprocess
from couce.train.settings import TrainSettings

_BATCH = 32


class TrainedRun(NamedTuple):
    name: str
    network: EmbeddingNetwork  # on the device, in evaluation mode
    objective: CouCE  # on the CPU, in evaluation mode, so that the analysis enqueues nothing
    settings: TrainSettings
    preprocess: Preprocess
    data: DataSet
    learned: Split  # the training half without the classes that were held out
    device: torch.device


def open_run(path: Path, data: Path | None = None) -> TrainedRun:
    """Opens the last epoch of the run in the folder ``path``, or a .pt file of a run.

    ``data`` is the folder of its data set, if it has moved since the training.
    """
    network, preprocess, content = load_network(checkpoint_of(path))
    missing = {"settings", "data", "classes", "objective"} - content.keys()
    if missing:
        raise CouceError(
            f"{path} is not a run of `couce train`: it has no {', '.join(sorted(missing))}"
        )
    plugins.check_plugins(content.get("plugins", {}), str(path))
    settings = TrainSettings.parse(content["settings"])
    found = open_dataset(**{**content["data"], **({} if data is None else {"root": data})})
    learned = found.train.select(np.isin(found.train.names, content["classes"])[found.train.labels])
    if list(learned.names) != content["classes"]:
        raise CouceError(
            f"{found.root} does not have the classes that {path} was trained on; give the folder of"
            " its own data set with --data"
        )
    device = choose_device()
    return TrainedRun(
        name=path.parent.name if path.suffix == ".pt" else path.resolve().name,
        network=network.on(device).eval(),
        objective=_objective(settings, content, len(learned.names)),
        settings=settings,
        preprocess=preprocess,
        data=found,
        learned=learned,
        device=device,
    )


def open_runs(paths: Sequence[Path], data: Path | None = None) -> list[TrainedRun]:
    """Opens several runs on the same data set, and gives each a different name."""
    runs = [open_run(path, data) for path in paths]
    for run in runs[1:]:
        if run.data.test.names != runs[0].data.test.names:
            raise CouceError(
                f"{run.name} and {runs[0].name} were trained on different data sets; compare runs"
                " on the same one"
            )
    return [run._replace(name=name) for run, name in zip(runs, unique_names(paths), strict=True)]


def _objective(settings: TrainSettings, content: dict[str, Any], classes: int) -> CouCE:
    loss = build_loss(settings.loss, classes, settings.dim, **settings.loss_options)
    objective = CouCE(loss, settings)
    objective.load_state_dict(content["objective"])
    return objective.eval()


def sample(split: Split, images: int, classes: int | None = None) -> Split:
    """About ``images`` images of a split, in evenly spread classes that are whole if possible.

    A class keeps at least two images, so that its queries can be right. ``classes`` is the number
    of classes; None derives it from ``images``.
    """
    per_class = len(split.paths) / len(split.names)
    wanted = round(images / per_class) if classes is None else classes
    count = min(max(2, wanted), len(split.names))
    chosen = np.unique(np.linspace(0, len(split.names) - 1, count).round().astype(int))
    each = max(2, images // count)
    keep = np.zeros(len(split.paths), bool)
    for code in chosen:
        members = np.flatnonzero(split.labels == code)
        spread = np.linspace(0, len(members) - 1, min(each, len(members))).round().astype(int)
        keep[members[spread]] = True
    return split.select(keep)


def embed_split(run: TrainedRun, split: Split) -> tuple[NDArray[np.float32], Split]:
    """Embeddings (N, d) of unit length, and the split of the N images that could be decoded."""
    store = ImageStore(split, run.preprocess, workers=usable_cores())
    rows, decoded = embed_images(run.network, store, run.device)
    return rows, split.select(decoded)


def load_pixels(
    split: Split, preprocess: Preprocess, indices: Sequence[int] | None = None
) -> Iterator[tuple[NDArray[np.uint8], list[int]]]:
    """Batches of centre crops (B, crop, crop, 3), with the indices of their images in the split."""
    store = ImageStore(split, preprocess)
    edge = round((preprocess.resize - preprocess.crop) / 2)  # as in Preprocess.pixels
    centre = slice(edge, edge + preprocess.crop)
    todo = list(range(len(split.paths)) if indices is None else indices)
    with ThreadPoolExecutor(usable_cores()) as threads:
        for start in range(0, len(todo), _BATCH):
            part = todo[start : start + _BATCH]
            found = list(threads.map(store.load_or_none, part))
            loaded = [i for i, image in zip(part, found, strict=True) if image is not None]
            if loaded:
                yield np.stack([each[centre, centre] for each in found if each is not None]), loaded


def load_images(run: TrainedRun, split: Split) -> Iterator[tuple[Tensor, list[int]]]:
    """The batches of :func:`load_pixels`, normalised and on the device of the run."""
    normalise = Normalise(run.preprocess).to(run.device)
    for pixels, indices in load_pixels(split, run.preprocess):
        yield normalise(torch.from_numpy(pixels).to(run.device)), indices
