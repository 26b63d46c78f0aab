"""Batches for training: their images and crops depend on the seed and the epoch alone.

So a resumed run sees the same batches as an uninterrupted one, whichever threads decode them.
"""

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from couce.data.images import ImageStore

_AHEAD = 2  # how many batches are decoded while one is trained on


class Batch(NamedTuple):
    pixels: NDArray[np.uint8]  # (N, crop, crop, 3), RGB
    labels: NDArray[np.intp]  # (N,)


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
) -> Iterator[Batch]:
    """The planned batches, randomly cropped and mirrored. Threads decode them ahead of time.

    ``share`` is the part of every batch that this process trains on.
    """
    room = store.preprocess.resize - store.preprocess.crop + 1

    def start(step: int) -> tuple[list[Future[NDArray[np.uint8]]], NDArray[np.intp]]:
        # Drawn for the whole batch, so that several processes crop as a single one would.
        rng = np.random.default_rng((seed, epoch, 1, step))
        draws = rng.integers(0, (room, room, 2), (len(plan[step]), 3))
        chosen, draws = plan[step][share], draws[share]
        jobs = [
            threads.submit(_crop, store, int(index), draw)
            for index, draw in zip(chosen, draws, strict=True)
        ]
        return jobs, labels[chosen]

    with ThreadPoolExecutor(max(1, store.workers)) as threads:
        ahead = deque(start(step) for step in range(min(_AHEAD, len(plan))))
        for step in range(len(plan)):
            jobs, batch_labels = ahead.popleft()
            pixels = np.stack([job.result() for job in jobs])
            if step + _AHEAD < len(plan):
                ahead.append(start(step + _AHEAD))
            yield Batch(pixels, batch_labels)


def _crop(store: ImageStore, index: int, draw: NDArray[np.int64]) -> NDArray[np.uint8]:
    top, left, mirrored = draw
    crop = store.preprocess.crop
    pixels = store.load_or_substitute(index)[top : top + crop, left : left + crop]
    return pixels[:, ::-1] if mirrored else pixels
