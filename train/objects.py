"""Where the objects of the training images are: found without labels, or read from a folder.

In a pretrained network, the last feature map is strongest where the object is. This *evidence* is
the prior of :mod:`couce.masks.estimate`, which finds the outline by the colours of the image. It is
done once, before the training, with the starting weights. Without pretrained weights, colours and
place are the only evidence.
"""

import hashlib
import json
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from couce.data.images import ImageStore
from couce.errors import CouceError
from couce.files import replace_file
from couce.machine.cores import usable_cores
from couce.masks import masks_in
from couce.masks.estimate import estimate_mask, log_odds_of_place
from couce.network import EmbeddingNetwork, Normalise

log = logging.getLogger(__name__)

_SIDE = 128  # pixels of a map
_BATCH = 64
# The log-odds of the object where the feature map is as strong as its mean, in its deviations. So
# about a tenth of the cells are more likely object than not.
_RARE = 1.8
_PLACE = 0.5  # how much the place counts beside the feature map


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
    if objects != "found":
        return _all(store, masks_in(Path(objects)))
    kept = folder / f"{_name(network, store)}.objects.npy"
    if not kept.exists():
        log.info("Finding the objects of %d images; the result is kept", len(store.split.paths))
        priors = None if network is None else _priors(network, store, device)
        maps = _all(
            store,
            lambda path, image: estimate_mask(image, None if priors is None else priors[path]),
        )
        folder.mkdir(parents=True, exist_ok=True)
        replace_file(kept, lambda part: _save(part, maps))
    return np.load(kept, mmap_mode="r")


def _name(network: EmbeddingNetwork | None, store: ImageStore) -> str:
    """A hash of the images and of the weights."""
    content = [[str(path) for path in store.split.paths], store.preprocess.to_dict()]
    digest = hashlib.sha256(json.dumps(content).encode())
    if network is not None:
        for tensor in network.backbone.state_dict().values():
            digest.update(tensor.cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]


def _save(path: Path, maps: NDArray[np.uint8]) -> None:
    with path.open("wb") as file:
        np.save(file, maps)


def _all(store: ImageStore, mask: Callable[[Path, Image.Image], Image.Image]) -> NDArray[np.uint8]:
    """The masks of all images at the size of a map; empty where an image cannot be decoded."""

    def one(index: int) -> NDArray[np.uint8]:
        pixels = store.load_or_none(index)
        if pixels is None:
            return np.zeros((_SIDE, _SIDE), np.uint8)
        found = mask(store.split.paths[index], Image.fromarray(pixels))
        return np.asarray(found.resize((_SIDE, _SIDE), Image.Resampling.BILINEAR))

    with ThreadPoolExecutor(usable_cores()) as threads:
        return np.stack(list(threads.map(one, range(len(store.split.paths)))))


@torch.inference_mode()
def _priors(
    network: EmbeddingNetwork, store: ImageStore, device: torch.device
) -> dict[Path, NDArray[np.float64]]:
    """For each image a map (h, w): how probable the object is in each cell of the last map."""
    training = network.training
    network.eval()
    normalise = Normalise(store.preprocess).to(device)
    found = {}
    with ThreadPoolExecutor(max(1, store.workers)) as threads:
        for start in range(0, len(store.split.paths), _BATCH):
            indices = range(start, min(start + _BATCH, len(store.split.paths)))
            images = list(threads.map(store.load_or_none, indices))
            read = [
                (i, image) for i, image in zip(indices, images, strict=True) if image is not None
            ]
            if not read:
                continue
            batch = torch.from_numpy(np.stack([image for _, image in read])).to(device)
            maps = network.backbone(normalise(batch)).float()  # (n, C, h, w)
            strength = maps.square().sum(dim=1).sqrt()  # (n, h, w)
            mean = strength.mean(dim=(1, 2), keepdim=True)
            spread = strength.std(dim=(1, 2), keepdim=True).clamp(min=1e-6)
            standard = ((strength - mean) / spread).cpu().numpy().astype(np.float64)
            odds = standard - _RARE + _PLACE * log_odds_of_place(*standard.shape[1:])
            for (index, _), each in zip(read, odds, strict=True):
                found[store.split.paths[index]] = 1 / (1 + np.exp(-each))
    network.train(training)
    if not found:
        raise CouceError("none of the images could be read")
    return found
