"""Batches for training: their images and crops depend on the seed and the epoch alone.

So a resumed run sees the same batches as an uninterrupted one, whichever threads decode them.
"""

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from couce.data.images import ImageStore
from couce.masks.backgrounds import LEAST, Mask, Pixels, paste, without_object

_AHEAD = 2  # how many batches are decoded while one is trained on


class Batch(NamedTuple):
    pixels: NDArray[np.uint8]  # (N, crop, crop, 3), RGB
    labels: NDArray[np.intp]  # (N,)


class Objects(NamedTuple):
    """Where the objects of the training images are, and how many get another background."""

    maps: NDArray[np.uint8]  # (N, side, side), 255 where the object is
    share: float  # of each batch


def balanced_epoch(
    labels: NDArray[np.intp], classes: int, images: int, seed: int, epoch: int
) -> list[NDArray[np.intp]]:
    """The indices of each batch of an epoch: ``images`` of each of ``classes`` random classes.

    There are as many batches as it takes to fill the set once. A class with fewer than ``images``
    images gives some of them several times.

    >>> batches = balanced_epoch(np.repeat(np.arange(5), 4), classes=3, images=2, seed=0, epoch=0)
    >>> [len(batch) for batch in batches]
    [6, 6, 6]
    """
    rng = np.random.default_rng((seed, epoch, 0))
    order = np.argsort(labels, kind="stable")
    members = np.split(order, np.flatnonzero(np.diff(labels[order])) + 1)
    classes = min(classes, len(members))
    steps = max(1, len(labels) // (classes * images))
    return [
        np.concatenate(
            [
                rng.choice(members[c], images, replace=len(members[c]) < images)
                for c in rng.choice(len(members), classes, replace=False)
            ]
        )
        for _ in range(steps)
    ]


def training_batches(
    store: ImageStore,
    labels: NDArray[np.intp],
    plan: list[NDArray[np.intp]],
    seed: int,
    epoch: int,
    share: slice = slice(None),
    objects: Objects | None = None,
) -> Iterator[Batch]:
    """The planned batches, randomly cropped and mirrored. Threads decode them ahead of time.

    ``share`` is the part of every batch that this process trains on. With ``objects``, some images
    get the background of an image of another class in their batch.
    """
    room = store.preprocess.resize - store.preprocess.crop + 1

    def start(step: int) -> tuple[list[Future[Pixels]], NDArray[np.intp]]:
        chosen = plan[step]
        # Drawn for the whole batch, so that several processes crop as a single one would.
        rng = np.random.default_rng((seed, epoch, 1, step))
        draws = rng.integers(0, (room, room, 2), (len(chosen), 3))
        views = [(int(index), draw) for index, draw in zip(chosen, draws, strict=True)]
        if objects is None:
            jobs = [threads.submit(_crop, store, *view) for view in views[share]]
        else:
            rng = np.random.default_rng((seed, epoch, 4, step))
            donors = draw_donors(labels[chosen], objects.share, rng)
            lent = [None if donor < 0 else views[donor] for donor in donors.tolist()]
            jobs = [
                threads.submit(_before_background, store, objects.maps, *pair)
                for pair in zip(views[share], lent[share], strict=True)
            ]
        return jobs, labels[chosen[share]]

    with ThreadPoolExecutor(max(1, store.workers)) as threads:
        ahead = deque(start(step) for step in range(min(_AHEAD, len(plan))))
        for step in range(len(plan)):
            jobs, batch_labels = ahead.popleft()
            pixels = np.stack([job.result() for job in jobs])
            if step + _AHEAD < len(plan):
                ahead.append(start(step + _AHEAD))
            yield Batch(pixels, batch_labels)


def draw_donors(
    labels: NDArray[np.intp], share: float, rng: np.random.Generator
) -> NDArray[np.intp]:
    """For each image of a batch, one of another class that lends its background; -1 for none.

    >>> draw_donors(np.array([3, 3, 3]), 1.0, np.random.default_rng(0)).tolist()  # one class
    [-1, -1, -1]
    """
    donors = np.full(len(labels), -1)
    for place in np.flatnonzero(rng.random(len(labels)) < share):
        others = np.flatnonzero(labels != labels[place])
        if len(others):
            donors[place] = rng.choice(others)
    return donors


_View = tuple[int, NDArray[np.int64]]  # an image of the store, and how it is cropped and mirrored


def _before_background(
    store: ImageStore, maps: NDArray[np.uint8], view: _View, donor: _View | None
) -> Pixels:
    """The crop of an image, with its object before the background of the donor if there is one."""
    pixels = _crop(store, *view)
    if donor is None:
        return pixels
    mask, lent = _crop_of_map(store, maps, *view), _crop(store, *donor)
    # Without an object there is nothing to be put before anything. And if the donor does not
    # decode, its map is not that of the image that takes its place.
    if mask.mean() < LEAST * 255 or donor[0] in store.dead:
        return pixels
    return paste(pixels, mask, without_object(lent, _crop_of_map(store, maps, *donor)))


def _crop_of_map(
    store: ImageStore, maps: NDArray[np.uint8], index: int, draw: NDArray[np.int64]
) -> Mask:
    """The part of an object map that :func:`_crop` cuts out of its image, at the size of a crop."""
    top, left, mirrored = draw.tolist()
    crop = store.preprocess.crop
    scale = maps.shape[1] / store.preprocess.resize
    box = (left * scale, top * scale, (left + crop) * scale, (top + crop) * scale)
    part = Image.fromarray(maps[index]).resize((crop, crop), Image.Resampling.BILINEAR, box)
    return np.asarray(part)[:, :: -1 if mirrored else 1]


def _crop(store: ImageStore, index: int, draw: NDArray[np.int64]) -> NDArray[np.uint8]:
    top, left, mirrored = draw
    crop = store.preprocess.crop
    pixels = store.load_or_substitute(index)[top : top + crop, left : left + crop]
    return pixels[:, ::-1] if mirrored else pixels
