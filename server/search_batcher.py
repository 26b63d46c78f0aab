"""Joins searches that arrive at the same moment with the same options into one call of the index.

Images of one batch leave the model together, so their searches start together, too. One read of the
catalog, one matrix product and one wake-up of the event loop then serve all of them.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from couce.index import Hit
from couce.index.filters import Filter
from couce.server.image_batcher import Row


class Wanted(NamedTuple):
    k: int
    offset: int
    filter: Filter | None


class _Waiting(NamedTuple):
    row: Row  # the query
    answer: "asyncio.Future[list[Hit]]"


class SearchBatcher:
    """Batches searches for ``search``.

    ``search`` takes several queries (d,) and the options of all of them. It returns the hits of
    each query.
    """

    def __init__(self, search: Callable[[list[Row], Wanted], Awaitable[list[list[Hit]]]]) -> None:
        self._search = search
        self._gathering: dict[str, list[_Waiting]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def hits(self, row: Row, wanted: Wanted) -> list[Hit]:
        """The hits of one query.

        If this is cancelled before the search starts, the query is left out.
        """
        loop = asyncio.get_running_loop()
        waiting = _Waiting(row, loop.create_future())
        # The key is text, because True == 1 in Python, but not in metadata.
        key = repr(wanted)
        if key not in self._gathering:
            self._gathering[key] = []
            # The event loop calls _leave after all tasks of the same model batch have called this.
            loop.call_soon(self._leave, key, wanted)
        self._gathering[key].append(waiting)
        return await waiting.answer

    def _leave(self, key: str, wanted: Wanted) -> None:
        together = [each for each in self._gathering.pop(key) if not each.answer.done()]
        task = asyncio.create_task(self._answer(together, wanted))
        self._tasks.add(task)  # the event loop itself only keeps weak references
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, together: list[_Waiting], wanted: Wanted) -> None:
        try:
            found = await self._search([each.row for each in together], wanted)
        except Exception as error:
            for each in together:
                if not each.answer.done():
                    each.answer.set_exception(error)
            return
        for each, hits in zip(together, found, strict=True):
            if not each.answer.done():
                each.answer.set_result(hits)
