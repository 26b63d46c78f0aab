"""Images that arrive together go through the model together.

A batch leaves when it is full, when nothing more is on its way to it, or when its first image has waited
long enough, whichever comes first. On its way is what is being decoded, so an image that comes alone never
waits for company. While a batch is in the model the next one gathers, and once full it stands behind it, so
that the model goes from one to the next without waiting for anybody.

A model on a CPU has two lanes that share the cores, with batches of half the size. A layer ends with the last
of its threads, so that one whose core a decoder takes for a moment keeps the others waiting; two batches on
a core each do not wait for each other. An image that comes alone has all cores for itself.

Batches have powers of two as their sizes: of 11 images 8 leave, and the other three have company by the time
the model is free. So onnxruntime sees few shapes, whose memory it keeps, and none of its work is padding.
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
    waited: float  # seconds
    ran: float


class _Waiting(NamedTuple):
    pixels: Pixels
    since: float
    answer: "asyncio.Future[Embedded]"


def largest_batch(images: int) -> int:
    """The largest power of two that so many images fill.

    >>> [largest_batch(n) for n in (1, 2, 3, 16, 31)]
    [1, 2, 2, 16, 16]
    """
    return 1 << (images.bit_length() - 1)


class ImageBatcher:
    """``run`` takes pixels (N, crop, crop, 3) and gives rows (N, d), in a thread of its own.

    ``lane``, if given, does the same and may run twice at a time. Either way up to ``size`` images are in the
    model.
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
        self.size = largest_batch(size // self._lanes)  # of a lane's batch
        self._waiting: deque[_Waiting] = deque()
        self._coming = 0
        self._taken = 0  # lanes that have a batch, and a batch that stands behind them
        self._alone = False  # whether an image has the model for itself
        self._changed = asyncio.Event()
        self._threads = ThreadPoolExecutor(self._lanes, "model")
        self._tasks = [asyncio.create_task(self._work()) for _ in range(self._lanes + 1)]

    @contextmanager
    def coming(self) -> Iterator[None]:
        """An image is on its way: a batch may wait for it."""
        self._coming += 1
        try:
            yield
        finally:
            self._coming -= 1
            self._changed.set()

    async def embed(self, pixels: Pixels) -> Embedded:
        """Cancelled before its batch leaves, an image is left out of it."""
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
            except Exception:  # the model's: one image must not fail the others
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
        """The next batch, and what it goes through."""
        while True:
            self._waiting = deque(
                w for w in self._waiting if not w.answer.done()
            )  # who has not left
            count = len(self._waiting)
            left = None  # seconds after which to look again, unless something changes before
            free = 0 if self._alone else self._lanes - self._taken
            if count and free > 0:
                left = self._waiting[0].since + self._wait - time.perf_counter()
            full = count >= self.size and not self._alone
            if full or (left is not None and (not self._coming or left <= 0)):
                if count == 1 and free == self._lanes:
                    return [self._waiting.popleft()], self._run
                # Of two free lanes the other has its half, unless more is coming for it.
                share = count if free < 2 or self._coming else (count + 1) // 2
                leave = min(self.size, largest_batch(share))
                return [self._waiting.popleft() for _ in range(leave)], self._lane
            self._changed.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), left)


def _through(run: Run, pixels: list[Pixels]) -> tuple[float, Any]:
    """When the model began, and its rows."""
    began = time.perf_counter()
    return began, run(np.stack(pixels))
