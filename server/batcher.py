"""Images that arrive together go through the model together.

A batch leaves when it is full, when nothing more is on its way to it, or when its first image has waited
long enough, whichever comes first. On its way is what is being decoded, so an image that comes alone never
waits for company. While a batch is in the model the next one gathers, and once full it stands behind it, so
that the model goes from one to the next without waiting for anybody.

Batches have powers of two as their sizes: of 11 images 8 leave, and the other three have company by the time
the model is free. So the engine sees few shapes, whose memory it keeps, and none of its work is padding.
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


class Batcher:
    """``run`` takes pixels (N, crop, crop, 3) and gives rows (N, d), in a thread of its own."""

    def __init__(
        self,
        run: Callable[[Pixels], NDArray[np.float32]],
        size: int,
        wait: float,
        observe: Callable[[int], object] = lambda _: None,
    ) -> None:
        self._run, self._wait, self._observe = run, wait, observe
        self.size = largest_batch(size)
        self._waiting: deque[_Waiting] = deque()
        self._coming = 0
        self._inside = 0  # batches that the model has or that stand behind it
        self._changed = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, "model")
        self._tasks = [asyncio.create_task(self._work()) for _ in range(2)]

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
        self._thread.shutdown(wait=False)

    async def _work(self) -> None:
        while True:
            batch = await self._gather()
            self._observe(len(batch))
            self._inside += 1
            try:
                await self._answer(batch)
            except Exception:  # the model's: one image must not fail the others
                for each in batch:
                    try:
                        await self._answer([each])
                    except Exception as error:
                        if not each.answer.done():
                            each.answer.set_exception(error)
            finally:
                self._inside -= 1
                self._changed.set()

    async def _answer(self, batch: list[_Waiting]) -> None:
        began, rows = await asyncio.get_running_loop().run_in_executor(
            self._thread, _through, self._run, [each.pixels for each in batch]
        )
        ran = time.perf_counter() - began
        for each, row in zip(batch, rows, strict=True):
            if not each.answer.done():
                each.answer.set_result(Embedded(row, began - each.since, ran))

    async def _gather(self) -> list[_Waiting]:
        while True:
            self._waiting = deque(
                w for w in self._waiting if not w.answer.done()
            )  # who has not left
            count = len(self._waiting)
            left = None  # seconds after which to look again, unless something changes before
            if count and not self._inside:
                left = self._waiting[0].since + self._wait - time.perf_counter()
            if count >= self.size or (left is not None and (not self._coming or left <= 0)):
                leave = min(self.size, largest_batch(count))
                return [self._waiting.popleft() for _ in range(leave)]
            self._changed.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), left)


def _through(run: Callable[[Any], NDArray[np.float32]], pixels: list[Pixels]) -> tuple[float, Any]:
    """When the model began, and its rows."""
    began = time.perf_counter()
    return began, run(np.stack(pixels))
