"""Keeps a model and an index open, and replaces both while requests go on."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from couce.embedder import Embedder
from couce.index import Hit, Index, open_index
from couce.index.base import Mode
from couce.index.local.catalog import NAME as CATALOG
from couce.index.opening import is_remote
from couce.machine.cores import usable_cores
from couce.machine.libraries import import_library
from couce.preprocess import Preprocess
from couce.server.http.problems import Problem
from couce.server.image_batcher import ImageBatcher, Row, largest_batch
from couce.server.prometheus import Prometheus
from couce.server.search_batcher import SearchBatcher, Wanted
from couce.server.settings import ServerSettings

log = logging.getLogger("couce.server")

_T = TypeVar("_T")

_SEARCHES = 4  # threads that search the index, each with its own connection to the catalog
_LARGE = 50_000  # an index with at least this many items is searched on several cores


class Serving:
    """A model and its index, opened together.

    :meth:`open` opens them. Then :meth:`start` must be called within the event loop.
    """

    image_batcher: ImageBatcher

    def __init__(self, embedder: Embedder, lane: Embedder | None, index: Index) -> None:
        self.embedder, self.index = embedder, index
        self._lane = lane  # the same model, for two batches at a time
        self._threads = ThreadPoolExecutor(
            _SEARCHES, "index", _alone if len(index) < _LARGE else None
        )
        self.search_batcher = SearchBatcher(self._search)
        self._users = 0  # requests that use this
        self._retired = False
        self._free = asyncio.Event()

    @classmethod
    def open(cls, settings: ServerSettings) -> "Serving":
        """Opens model and index, checks that they belong together and runs the model once."""
        embedder = Embedder(
            settings.model,
            provider=settings.provider,
            threads=settings.threads or max(1, usable_cores() // settings.workers),
            batch=settings.batch,
            preprocess=Preprocess.parse(settings.preprocess) if settings.preprocess else None,
            max_pixels=settings.max_pixels,
        )
        lane = None
        if (
            embedder.provider == "cpu"
            and embedder.threads > 1
            and settings.batch > 1
            # Half of any other fixed batch would be filled up with padding.
            and embedder.fixed_batch in (None, 1)
        ):
            # A session computes in its own threads and in the thread of its caller. A lane has two
            # callers, so it gets one thread less.
            lane = embedder.with_threads(embedder.threads - 1)
        crop = embedder.preprocess.crop
        noise = np.random.default_rng(0).integers(0, 256, (settings.batch, crop, crop, 3), np.uint8)
        embedder.run(noise[:1])
        # The largest batch runs once, so that its memory is allocated now.
        if lane is None:
            embedder.run(noise[: largest_batch(settings.batch)])
        else:
            lane.run(noise[: largest_batch(settings.batch // 2)])
        mode: Mode = "read" if settings.read_only else "share"
        if settings.new_index and not settings.read_only:
            if is_remote(settings.index):
                mode = "write"  # Milvus creates the collection with its first item
            elif not (Path(settings.index) / CATALOG).exists():
                open_index(settings.index, "write", embedder.hash, embedder.dim).close()
        index = open_index(settings.index, mode, embedder.hash, embedder.dim)
        return cls(embedder, lane, index)

    def start(self, settings: ServerSettings, prometheus: Prometheus) -> None:
        self.image_batcher = ImageBatcher(
            self.embedder.run,
            settings.batch,
            settings.batch_wait,
            prometheus.batches.observe,
            self._lane.run if self._lane else None,
        )

    async def ask(self, function: Callable[..., _T], *arguments: Any) -> _T:
        """Calls a function of the index in a thread."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, function, *arguments)

    async def _search(self, rows: list[Row], wanted: Wanted) -> list[list[Hit]]:
        k, offset, chosen = wanted
        return await self.ask(self.index.search, rows, k, chosen, offset)

    def take(self) -> None:
        self._users += 1

    def give_back(self) -> None:
        self._users -= 1
        if self._retired and not self._users:
            self._free.set()

    async def retire(self) -> None:
        """Closes model and index when the last request that uses them has ended."""
        self._retired = True
        if self._users:
            await self._free.wait()
        await self.image_batcher.close()
        await asyncio.to_thread(self.close)

    def close(self) -> None:
        self._threads.shutdown()
        self.index.close()


def _alone() -> None:
    """Limits the searches of this thread to one core.

    The model uses the other cores. A search that waits for them takes 20 times as long.
    """
    import_library("faiss").omp_set_num_threads(1)


class LiveServing:
    """The model and index that answer requests now, and their replacement without a break.

    All processes that share a state folder reload together. The process that gets the request to
    reload writes a mark into this folder, and the others watch it.
    """

    def __init__(self, settings: ServerSettings, prometheus: Prometheus) -> None:
        self._settings, self._prometheus = settings, prometheus
        self._now: Serving | None = None
        self._changing = asyncio.Lock()
        self._retiring: set[asyncio.Task[None]] = set()
        self._mark = settings.state_folder / "reload"
        self._seen: int | None = None  # the time of the last mark that was seen

    async def start(self) -> None:
        self._seen = self._stamp()
        self._now = await self._open()
        self._watcher = asyncio.create_task(self._watch())

    @asynccontextmanager
    async def use(self) -> AsyncIterator[Serving]:
        """The current model and index, which stay open until the block ends."""
        serving = self._now
        if serving is None:
            raise Problem("unavailable", "the model is being loaded; try again in a moment")
        serving.take()
        try:
            yield serving
        finally:
            serving.give_back()

    async def reload(self, everywhere: bool = True) -> Serving:
        """Opens model and index again and switches to them.

        If the new ones have a fault, the old ones stay. ``everywhere``: whether the other processes
        reload, too.
        """
        async with self._changing:
            new = await self._open()
            old, self._now = self._now, new
            if old is not None:
                task = asyncio.create_task(old.retire())
                self._retiring.add(task)
                task.add_done_callback(self._retiring.discard)
            if everywhere:
                try:
                    await asyncio.to_thread(self._leave_mark)
                except OSError as error:  # for example a read-only folder
                    log.warning(
                        "other processes cannot be told to reload; restart them (%s)", error
                    )
            return new

    async def close(self) -> None:
        self._watcher.cancel()
        serving, self._now = self._now, None
        if serving is not None:
            await serving.retire()
        await asyncio.gather(*self._retiring)

    async def _open(self) -> Serving:
        serving = await asyncio.to_thread(Serving.open, self._settings)
        serving.start(self._settings, self._prometheus)
        self._prometheus.items.set(await serving.ask(len, serving.index))
        return serving

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(1)
            stamp = self._stamp()
            if stamp != self._seen:
                self._seen = stamp
                try:
                    await self.reload(everywhere=False)
                except Exception as error:
                    log.warning("the old model and index stay in use: %s", error)

    def _leave_mark(self) -> None:
        self._mark.parent.mkdir(parents=True, exist_ok=True)
        self._mark.write_text(f"{time.time_ns()}\n")  # only the time of the file counts
        self._seen = self._stamp()

    def _stamp(self) -> int | None:
        try:
            return self._mark.stat().st_mtime_ns
        except OSError:
            return None
