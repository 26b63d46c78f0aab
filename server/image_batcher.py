"""Collects images of several requests and runs them through the model as one batch.

A batch starts when it is full, when no other image is being decoded for it, or when its first image
has waited long enough, whichever comes first. So an image that comes alone never waits for others.
While the model works on a batch, the next one is collected. A full batch waits behind the model, so
that the model goes from one batch to the next without a pause.

On a CPU, the model runs in two lanes that share the cores, with batches of half the size. A layer
of a model ends when the last of its threads ends. If a decoder takes the core of one thread for a
moment, all other threads of this batch wait. Two batches on a core each do not wait for each other.
An image that comes alone runs on all cores.

Batch sizes are powers of two. Of 11 images, 8 start together. The other three wait until the model
is free, and by then more images have usually arrived. So onnxruntime sees few input shapes, for
each of which it keeps memory, and no work is spent on padding.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[np.uint8]  # (crop, crop, 3)
Row = NDArray[np.float32]  # (d,)
Run = Callable[[Pixels], NDArray[np.float32]]


class Embedded(NamedTuple):
    row: Row
    waited: float  # seconds before its batch started
    ran: float  # seconds in the model


class _Waiting(NamedTuple):
    pixels: Pixels
    since: float  # when it was added, by time.perf_counter
    answer: "asyncio.Future[Embedded]"


def largest_batch(images: int) -> int:
    """The largest power of two that is at most ``images``.

    >>> [largest_batch(n) for n in (1, 2, 3, 16, 31)]
    [1, 2, 2, 16, 16]
    """
    return 1 << (images.bit_length() - 1)


class ImageBatcher:
    """Batches images for ``run``, which turns pixels (N, crop, crop, 3) into embeddings (N, d).

    Args:
        run: the model. It is called in a thread.
        size: how many images may be in the model at once.
        wait: how many seconds a batch may wait for images that are being decoded.
        observe: is called with the size of each batch.
        lane: the same model, which may be called from two threads at once with half the batch. If
            it is given, ``run`` only gets images that come alone.
    """

    def __init__(
        self,
        run: Run,
        size: int,
        wait: float,
        observe: Callable[[int], object] = lambda _: None,
        lane: Run | None = None,
    ) -> None:
        self._run, self._wait, self._observe = run, wait, observe
        self._lane = lane or run
        self._lanes = 2 if lane else 1
        self.size = largest_batch(size // self._lanes)  # of one batch
        self._waiting: deque[_Waiting] = deque()
        self._coming = 0  # images that are being decoded
        self._taken = 0  # batches that are in a lane or wait for one
        self._alone = False  # whether an image that came alone is in the model
        self._changed = asyncio.Event()
        self._threads = ThreadPoolExecutor(self._lanes, "model")
        self._tasks = [asyncio.create_task(self._work()) for _ in range(self._lanes + 1)]

    @contextmanager
    def coming(self) -> Iterator[None]:
        """Announces an image for as long as the block runs, so that a batch may wait for it."""
        self._coming += 1
        try:
            yield
        finally:
            self._coming -= 1
            self._changed.set()

    async def embed(self, pixels: Pixels) -> Embedded:
        """The embedding of an image.

        If this is cancelled before the batch starts, the image is left out of the batch.
        """
        answer: asyncio.Future[Embedded] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(pixels, time.perf_counter(), answer))
        self._changed.set()
        return await answer

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        for each in self._waiting:
            each.answer.cancel()
        self._threads.shutdown(wait=False)

    async def _work(self) -> None:
        while True:
            batch, run = await self._gather()
            alone = run is not self._lane
            self._alone |= alone
            self._observe(len(batch))
            self._taken += 1
            try:
                await self._answer(batch, run)
            # The model failed. It runs again for each image alone, so that one bad image does not
            # fail the others.
            except Exception:
                for each in batch:
                    try:
                        await self._answer([each], run)
                    except Exception as error:
                        if not each.answer.done():
                            each.answer.set_exception(error)
            finally:
                self._alone &= not alone
                self._taken -= 1
                self._changed.set()

    async def _answer(self, batch: list[_Waiting], run: Run) -> None:
        began, rows = await asyncio.get_running_loop().run_in_executor(
            self._threads, _through, run, [each.pixels for each in batch]
        )
        ran = time.perf_counter() - began
        for each, row in zip(batch, rows, strict=True):
            if not each.answer.done():
                each.answer.set_result(Embedded(row, began - each.since, ran))

    async def _gather(self) -> tuple[list[_Waiting], Run]:
        """Waits for the next batch, and returns it with the function that runs it."""
        while True:
            # Images whose request was cancelled are left out.
            self._waiting = deque(each for each in self._waiting if not each.answer.done())
            count = len(self._waiting)
            left = None  # seconds that the batch may still wait
            free = 0 if self._alone else self._lanes - self._taken
            if count and free > 0:
                left = self._waiting[0].since + self._wait - time.perf_counter()
            full = count >= self.size and not self._alone
            if full or (left is not None and (not self._coming or left <= 0)):
                if count == 1 and free == self._lanes:
                    return [self._waiting.popleft()], self._run
                # If both lanes are free, each gets half of the images. If more images are coming,
                # they go to the other lane, and this one takes all that are here.
                share = count if free < 2 or self._coming else (count + 1) // 2
                leave = min(self.size, largest_batch(share))
                return [self._waiting.popleft() for _ in range(leave)], self._lane
            self._changed.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), left)


def _through(run: Run, pixels: list[Pixels]) -> tuple[float, Any]:
    """When the model started, and its embeddings (N, d)."""
    began = time.perf_counter()
    return began, run(np.stack(pixels))
