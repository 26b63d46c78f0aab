"""SearchBatcher that want the same of the index at the same moment go to it together.

Images that left the model in one batch are all searched for at once: one moment of the catalog, one product
of matrices and one wake-up of the event loop serve them all.
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
    row: Row
    answer: "asyncio.Future[list[Hit]]"


class SearchBatcher:
    """``search`` takes several rows (d,) and what is wanted of all of them, and gives the hits of each."""

    def __init__(self, search: Callable[[list[Row], Wanted], Awaitable[list[list[Hit]]]]) -> None:
        self._search = search
        self._gathering: dict[str, list[_Waiting]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def hits(self, row: Row, wanted: Wanted) -> list[Hit]:
        """Cancelled before its turn, a search is left out."""
        loop = asyncio.get_running_loop()
        waiting = _Waiting(row, loop.create_future())
        key = repr(wanted)  # as text, since True == 1 in Python and not in metadata
        if key not in self._gathering:
            self._gathering[key] = []
            # Whoever was woken by the same batch has joined by the loop's next turn.
            loop.call_soon(self._leave, key, wanted)
        self._gathering[key].append(waiting)
        return await waiting.answer

    def _leave(self, key: str, wanted: Wanted) -> None:
        together = [each for each in self._gathering.pop(key) if not each.answer.done()]
        task = asyncio.create_task(self._answer(together, wanted))
        self._tasks.add(task)  # the loop itself keeps none
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
