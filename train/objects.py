"""Where the objects of the training images are: found without labels, or read from a folder.

In a pretrained network, the last feature map is strongest where the object is. For a sample of the
images, this is the prior of :mod:`couce.masks.estimate`, which finds the outline by the colours of
the image. Then a linear function of the feature map at the split learns these estimates. What only
some estimates get wrong, it does not learn, so its output is a better prior, with which the objects
of all images are found. FOUND (Siméoni et al., CVPR 2023) trains its one layer in the same way.

This is done once, before the training, with the starting weights. Without pretrained weights,
colours and place are the only evidence.
"""

import hashlib
import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from couce.data.images import ImageStore
from couce.files import replace_file
from couce.machine.cores import usable_cores
from couce.masks import masks_in
from couce.masks.estimate import estimate_mask, log_odds_of_place
from couce.network import EmbeddingNetwork, Normalise

log = logging.getLogger(__name__)

_SIDE = 128  # pixels of a map
_BATCH = 64
_SAMPLE = 2000  # images that the linear function learns from
_GRID = 16  # cells of a side of the feature map that it sees, at most
# The log-odds of the object where the last map is as strong as in the mean of its image, if its
# strength is measured in deviations: about a tenth of the cells are more likely object than not.
_RARE = 1.8
_PLACE = 0.5  # how much the place counts beside the strength
_RIDGE = 0.01  # relative to the variance of a channel
_STEEP = 6.0  # the log-odds for each unit of the linear function, which is ½ where it is undecided

# Birds (CUB) have 0.5 and scenes (the 15 of Lazebnik et al., 2006) 0.26, with MobileNetV2.
_LEAST_EXPLAINED = 0.35
_VERSION = 1  # to be raised when other objects are found


@torch.inference_mode()
def object_maps(
    objects: str,
    network: EmbeddingNetwork | None,
    store: ImageStore,
    folder: Path,
    device: torch.device,
) -> NDArray[np.uint8]:
    """Object maps (N, side, side) of the images of ``store``, 255 where the object is.

    ``objects`` is ``found``, or a folder of masks. ``network`` has pretrained weights; None if
    there are none. Found maps are kept in ``folder``.
    """
    paths = store.split.paths
    if objects != "found":
        mask = masks_in(Path(objects))
        return _in_threads(store, range(len(paths)), lambda i, image: mask(paths[i], image))
    kept = folder / f"{_name(network, store)}.objects.npy"
    about = kept.with_suffix(".json")
    if not kept.exists():
        log.info("Finding the objects of %d images; the result is kept", len(paths))
        maps, explained = _found(network, store, device)
        folder.mkdir(parents=True, exist_ok=True)
        replace_file(about, lambda part: part.write_text(json.dumps({"explained": explained})))
        replace_file(kept, lambda part: _save(part, maps))
    _tell(json.loads(about.read_text())["explained"])
    return np.load(kept, mmap_mode="r")


def _found(
    network: EmbeddingNetwork | None, store: ImageStore, device: torch.device
) -> tuple[NDArray[np.uint8], float | None]:
    """The maps, and how well the linear function explains the estimates (R²)."""
    count = len(store.split.paths)
    if network is None:
        return _in_threads(store, range(count), lambda _, image: estimate_mask(image)), None
    training = network.training
    network.eval()
    chosen = np.random.default_rng(0).permutation(count)[:_SAMPLE]
    regression = _learn(network, store, np.sort(chosen), device)
    parts = []
    for indices, images in _batches(store, np.arange(count), device):
        values = regression(_cells(network.backbone.stage1(images)))
        priors = dict(zip(indices, _probability(_STEEP * (values - 0.5)), strict=True))
        parts.append(_estimates(store, indices, priors))
    network.train(training)
    return np.concatenate(parts), regression.explained


def _learn(
    network: EmbeddingNetwork, store: ImageStore, chosen: NDArray[np.intp], device: torch.device
) -> "Regression":
    """Learns the estimates whose prior is the strength of the last feature map."""
    regression = Regression()
    for indices, images in _batches(store, chosen, device):
        maps = network.backbone.stage1(images)
        strength = network.backbone.stage2(maps).float().square().sum(dim=1).sqrt()  # (n, h, w)
        mean = strength.mean(dim=(1, 2), keepdim=True)
        spread = strength.std(dim=(1, 2), correction=0, keepdim=True).clamp(min=1e-6)
        odds = ((strength - mean) / spread).cpu().numpy().astype(np.float64)
        odds += _PLACE * log_odds_of_place(*odds.shape[1:]) - _RARE
        priors = dict(zip(indices, _probability(odds), strict=True))
        cells = _cells(maps)
        target = torch.from_numpy(_estimates(store, indices, priors)).float() / 255
        regression.add(cells, F.adaptive_avg_pool2d(target, _size(cells.shape[1:3])))
    regression.solve()
    return regression


def _tell(explained: float | None) -> None:
    if explained is None:
        log.info("Objects are found by colours and place alone, because the weights are random")
    elif explained >= _LEAST_EXPLAINED:
        log.info("Evidence of objects: R² %.2f", explained)
    else:
        log.warning(
            "The evidence of objects is poor (R² %.2f; photos of birds have about 0.5). The images"
            " may be scenes, or their objects may fill them. Give masks with"
            " --set backgrounds.objects=FOLDER, or keep the backgrounds with"
            " --set backgrounds.share=0",
            explained,
        )


class Regression:
    """The ridge regression of a map (n, h, w) from the cells of feature maps (n, h, w, C)."""

    def __init__(self) -> None:
        self._sums = torch.zeros(())  # of the products of all columns, (C + 2, C + 2)

    def add(self, cells: Tensor, target: Tensor) -> None:
        columns = [cells, torch.ones_like(target)[..., None], target[..., None]]
        rows = torch.cat(columns, dim=3).flatten(0, 2)  # (n·h·w, C + 2): features, 1, target
        self._sums = self._sums + (rows.T @ rows).double()

    def solve(self) -> None:
        moments = self._sums / self._sums[-2, -2]
        means = moments[-2]
        covariance = moments - means[:, None] * means
        features, shared = covariance[:-2, :-2], covariance[:-2, -1]
        ridge = _RIDGE * features.diagonal().mean() * torch.eye(len(features))
        weights = torch.linalg.solve(features + ridge, shared)
        # The share of the target's variance that the features explain.
        self.explained = float(weights @ shared / covariance[-1, -1].clamp(min=1e-12))
        self._weights, self._offset = weights.float(), float(means[-1] - means[:-2] @ weights)

    def __call__(self, cells: Tensor) -> NDArray[np.float64]:
        """The fitted map (n, h, w)."""
        return (cells @ self._weights + self._offset).numpy().astype(np.float64)


def _cells(maps: Tensor) -> Tensor:
    """The cells (n, h, w, C) of feature maps (n, C, h, w), at most as many as the grid has."""
    pooled = F.adaptive_avg_pool2d(maps.float(), _size(maps.shape[-2:]))
    return pooled.permute(0, 2, 3, 1).cpu()


def _size(shape: torch.Size) -> tuple[int, int]:
    return min(_GRID, shape[0]), min(_GRID, shape[1])


def _probability(odds: NDArray[np.float64]) -> NDArray[np.float64]:
    return 1 / (1 + np.exp(-odds))


def _batches(
    store: ImageStore, chosen: NDArray[np.intp], device: torch.device
) -> Iterator[tuple[list[int], Tensor]]:
    """Normalised images in batches, with their indices. Images that do not decode are black."""
    normalise = Normalise(store.preprocess).to(device)
    with ThreadPoolExecutor(max(1, store.workers)) as threads:
        for start in range(0, len(chosen), _BATCH):
            indices = chosen[start : start + _BATCH].tolist()
            pixels = np.stack(list(threads.map(partial(_load, store), indices)))
            yield indices, normalise(torch.from_numpy(pixels).to(device))


def _load(store: ImageStore, index: int) -> NDArray[np.uint8]:
    pixels = store.load_or_none(index)
    size = store.preprocess.resize
    return np.zeros((size, size, 3), np.uint8) if pixels is None else pixels


def _estimates(
    store: ImageStore, indices: Sequence[int], priors: Mapping[int, NDArray[np.float64]]
) -> NDArray[np.uint8]:
    return _in_threads(store, indices, lambda index, image: estimate_mask(image, priors[index]))


def _in_threads(
    store: ImageStore, indices: Sequence[int], mask: Callable[[int, Image.Image], Image.Image]
) -> NDArray[np.uint8]:
    """The masks of these images at the size of a map. An image that does not decode has none."""

    def one(index: int) -> NDArray[np.uint8]:
        pixels = store.load_or_none(index)
        if pixels is None:
            return np.zeros((_SIDE, _SIDE), np.uint8)
        found = mask(index, Image.fromarray(pixels))
        return np.asarray(found.resize((_SIDE, _SIDE), Image.Resampling.BILINEAR))

    with ThreadPoolExecutor(usable_cores()) as threads:
        return np.stack(list(threads.map(one, indices)))


def _name(network: EmbeddingNetwork | None, store: ImageStore) -> str:
    """A hash of the images, of the weights and of the version of this module."""
    content = [_VERSION, [str(path) for path in store.split.paths], store.preprocess.to_dict()]
    digest = hashlib.sha256(json.dumps(content).encode())
    if network is not None:
        digest.update(f"{network.backbone.name} {network.backbone.split}".encode())
        for tensor in network.backbone.state_dict().values():
            digest.update(tensor.cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]


def _save(path: Path, maps: NDArray[np.uint8]) -> None:
    with path.open("wb") as file:
        np.save(file, maps)
