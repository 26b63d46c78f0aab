"""A model and an index that are open together, and the change to others while requests go on."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from couce.cores import usable_cores
from couce.embedder import Embedder
from couce.engines import import_engine
from couce.index import Hit, Index, open_index
from couce.index.base import Mode
from couce.index.catalog import NAME as CATALOG
from couce.index.opening import is_remote
from couce.preprocess import Preprocess
from couce.server.batcher import Batcher, Row, largest_batch
from couce.server.measures import Measures
from couce.server.problems import Problem
from couce.server.searches import Searches, Wanted
from couce.server.settings import ServerSettings

_T = TypeVar("_T")
Say = Callable[[str], None]

_SEARCHES = 4  # threads that ask the index; each has a connection of its own
_LARGE = 50_000  # items from which on one search is worth several cores


class Engine:
    """What answers requests: opened by :meth:`open`, then started within the event loop."""

    batcher: Batcher

    def __init__(self, embedder: Embedder, lane: Embedder | None, index: Index) -> None:
        self.embedder, self.index = embedder, index
        self._lane = lane  # the same model for two batches at a time
        self._threads = ThreadPoolExecutor(
            _SEARCHES, "index", _alone if len(index) < _LARGE else None
        )
        self.searches = Searches(self._search)
        self._users = 0
        self._retired = False
        self._free = asyncio.Event()

    @classmethod
    def open(cls, settings: ServerSettings, say: Say) -> "Engine":
        """Opens both, checks that they belong together and runs the model once."""
        embedder = Embedder(
            settings.model,
            provider=settings.provider,
            threads=settings.threads or max(1, usable_cores() // settings.workers),
            batch=settings.batch,
            preprocess=Preprocess.parse(settings.preprocess) if settings.preprocess else None,
            max_pixels=settings.pixels,
        )
        lane = None
        if (
            embedder.provider == "cpu"
            and embedder.threads > 1
            and settings.batch > 1
            and embedder.fixed_batch in (None, 1)  # halves of any other would be filled up
        ):
            # A session has threads of its own beside that of its caller, and here it has two callers.
            lane = embedder.with_threads(embedder.threads - 1)
        crop = embedder.preprocess.crop
        noise = np.random.default_rng(0).integers(0, 256, (settings.batch, crop, crop, 3), np.uint8)
        embedder.run(noise[:1])
        # The memory of a batch is taken now.
        if lane is None:
            embedder.run(noise[: largest_batch(settings.batch)])
        else:
            lane.run(noise[: largest_batch(settings.batch // 2)])
        mode: Mode = "read" if settings.read_only else "share"
        if settings.new_index and not settings.read_only:
            if is_remote(settings.index):
                mode = "write"  # a collection is made with its first item
            elif not (Path(settings.index) / CATALOG).exists():
                open_index(settings.index, "write", embedder.hash, embedder.dim).close()
        index = open_index(settings.index, mode, embedder.hash, embedder.dim, say=say)
        return cls(embedder, lane, index)

    def start(self, settings: ServerSettings, measures: Measures) -> None:
        self.batcher = Batcher(
            self.embedder.run,
            settings.batch,
            settings.batch_wait,
            measures.batches.observe,
            self._lane.run if self._lane else None,
        )

    async def ask(self, function: Callable[..., _T], *arguments: Any) -> _T:
        """Calls the index in a thread."""
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
        """Closes when the last request that uses it has ended."""
        self._retired = True
        if self._users:
            await self._free.wait()
        await self.batcher.close()
        await asyncio.to_thread(self.close)

    def close(self) -> None:
        self._threads.shutdown()
        self.index.close()


def _alone() -> None:
    """Searches of this thread take one core: to meet on others that the model has costs 20 times more."""
    import_engine("faiss").omp_set_num_threads(1)


class Engines:
    """The engine of now. Another takes its place without a request noticing.

    All processes that share a state folder follow: the one that was asked to reload leaves a mark there.
    """

    def __init__(self, settings: ServerSettings, measures: Measures, say: Say) -> None:
        self._settings, self._measures, self._say = settings, measures, say
        self._now: Engine | None = None
        self._changing = asyncio.Lock()
        self._retiring: set[asyncio.Task[None]] = set()
        self._mark = settings.state_folder / "reload"
        self._seen: int | None = None

    async def start(self) -> None:
        self._seen = self._stamp()
        self._now = await self._open()
        self._watcher = asyncio.create_task(self._watch())

    @asynccontextmanager
    async def use(self) -> AsyncIterator[Engine]:
        engine = self._now
        if engine is None:
            raise Problem("unavailable", "the model is being loaded; try again in a moment")
        engine.take()
        try:
            yield engine
        finally:
            engine.give_back()

    async def reload(self, everywhere: bool = True) -> Engine:
        """Opens model and index anew, beside the old ones, which stay if anything is wrong."""
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
                except OSError as error:  # a folder that may only be read
                    self._say(f"other processes are not told to reload: {error}")
            return new

    async def close(self) -> None:
        self._watcher.cancel()
        engine, self._now = self._now, None
        if engine is not None:
            await engine.retire()
        await asyncio.gather(*self._retiring)

    async def _open(self) -> Engine:
        engine = await asyncio.to_thread(Engine.open, self._settings, self._say)
        engine.start(self._settings, self._measures)
        self._measures.items.set(await engine.ask(len, engine.index))
        return engine

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(1)
            stamp = self._stamp()
            if stamp != self._seen:
                self._seen = stamp
                try:
                    await self.reload(everywhere=False)
                except Exception as error:  # the old ones stay
                    self._say(f"model and index stay as they are: {error}")

    def _leave_mark(self) -> None:
        self._mark.parent.mkdir(parents=True, exist_ok=True)
        self._mark.write_text(f"{time.time_ns()}\n")  # what counts is when
        self._seen = self._stamp()

    def _stamp(self) -> int | None:
        try:
            return self._mark.stat().st_mtime_ns
        except OSError:
            return None
