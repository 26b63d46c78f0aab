"""Decoded and resized images of a split, with an optional cache in memory or on disk."""

import hashlib
import json
import tempfile
import warnings
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from couce.data.base import Split
from couce.errors import CouceError
from couce.preprocess import ImageError, Preprocess, open_image

Cache = Literal["none", "ram", "disk"]


class ImageStore:
    """The images of a split before cropping: uint8 (resize, resize, 3), RGB.

    An image that cannot be decoded gives one warning and does not stop a run. Training takes the
    next image of its class instead, and evaluation leaves it out.
    """

    def __init__(
        self,
        split: Split,
        preprocess: Preprocess,
        cache: Cache = "none",
        cache_folder: Path | None = None,
        workers: int = 4,
    ) -> None:
        self.split = split
        self.preprocess = preprocess
        self.workers = workers
        self.dead: set[int] = set()
        shape = (len(split.paths), preprocess.resize, preprocess.resize, 3)
        self._kept: NDArray[np.uint8] | None = None
        self._have: NDArray[np.uint8] | None = None  # 1 where an image is kept
        if cache == "ram":
            self._kept, self._have = np.empty(shape, np.uint8), np.zeros(shape[0], np.uint8)
        elif cache == "disk":
            self._kept, self._have = _on_disk(shape, split, preprocess, cache_folder)

    def load(self, index: int) -> NDArray[np.uint8]:
        if self._kept is not None and self._have is not None and self._have[index]:
            return self._kept[index]
        image = open_image(self.split.paths[index], shortest=self.preprocess.resize)
        pixels = np.asarray(self.preprocess.resized(image))
        if self._kept is not None and self._have is not None:
            self._kept[index] = pixels
            # Set after the pixels are complete, because other threads read it at any time.
            self._have[index] = 1
        return pixels

    def load_or_none(self, index: int) -> NDArray[np.uint8] | None:
        try:
            return self.load(index)
        except ImageError as error:
            if index not in self.dead:
                self.dead.add(index)
                warnings.warn(f"left out: {error}", stacklevel=2)
            return None

    def load_or_substitute(self, index: int) -> NDArray[np.uint8]:
        """The image. If it cannot be decoded, the next image of its class that can."""
        pixels = self.load_or_none(index)
        if pixels is not None:
            return pixels
        members = np.flatnonzero(self.split.labels == self.split.labels[index])
        for other in np.roll(members, -int(np.searchsorted(members, index)) - 1):
            pixels = self.load_or_none(int(other))
            if pixels is not None:
                return pixels
        name = self.split.names[self.split.labels[index]]
        raise CouceError(f"no image of the class {name!r} can be decoded; remove the class")


def _on_disk(
    shape: tuple[int, ...], split: Split, preprocess: Preprocess, folder: Path | None
) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Opens the pixels and the marks of the cached images, as files that are mapped into memory.

    The names of the files are a hash of the paths of the images and of the preprocessing, so that
    different images never share a cache.
    """
    content = json.dumps([[str(path) for path in split.paths], preprocess.to_dict()])
    name = hashlib.sha256(content.encode()).hexdigest()[:16]
    folder = folder or Path(tempfile.gettempdir()) / "couce-cache"
    folder.mkdir(parents=True, exist_ok=True)
    arrays = []
    for kind, dims in (("pixels", shape), ("have", shape[:1])):
        path = folder / f"{name}.{kind}"
        if not path.exists() or path.stat().st_size != np.prod(dims):
            with path.open("wb") as file:
                file.truncate(int(np.prod(dims)))  # a sparse file, which takes no space yet
        arrays.append(np.memmap(path, np.uint8, "r+", shape=dims))
    return arrays[0], arrays[1]
