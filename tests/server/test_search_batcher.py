"""Searches at the same moment become one call of the index."""

import asyncio

import numpy as np

from couce.index import Hit
from couce.index.base import Item
from couce.server.image_batcher import Row
from couce.server.search_batcher import SearchBatcher, Wanted

PLAIN = Wanted(10, 0, None)


class Gallery:
    """Answers each query with its first number, and records the queries of each call."""

    def __init__(self) -> None:
        self.calls: list[tuple[Wanted, list[int]]] = []

    async def search(self, rows: list[Row], wanted: Wanted) -> list[list[Hit]]:
        values = [int(row[0]) for row in rows]
        self.calls.append((wanted, values))
        await asyncio.sleep(0)
        if 13 in values:
            raise ValueError("thirteen")
        return [[Hit(str(value), 1.0, Item(str(value)))] for value in values]


def row(value: int) -> Row:
    return np.array([value], np.float32)


def test_what_comes_together_and_wants_the_same_is_one_call() -> None:
    async def test() -> tuple[list[str], Gallery]:
        gallery = Gallery()
        searches = SearchBatcher(gallery.search)
        woken = asyncio.Event()

        async def one(value: int, wanted: Wanted) -> str:
            await woken.wait()  # all images of a batch are ready at once
            (hit,) = await searches.hits(row(value), wanted)
            return hit.id

        yes, one_ = Wanted(10, 0, {"metadata.a": True}), Wanted(10, 0, {"metadata.a": 1})
        wanted = [PLAIN, yes, PLAIN, Wanted(5, 0, None), PLAIN, one_]
        tasks = [asyncio.create_task(one(number, each)) for number, each in enumerate(wanted)]
        await asyncio.sleep(0)
        woken.set()
        return await asyncio.gather(*tasks), gallery

    found, gallery = asyncio.run(test())
    assert found == ["0", "1", "2", "3", "4", "5"]  # each search has its own answer
    assert [values for _, values in gallery.calls] == [[0, 2, 4], [1], [3], [5]]


def test_who_leaves_is_left_out_and_later_ones_go_again() -> None:
    async def test() -> Gallery:
        gallery = Gallery()
        searches = SearchBatcher(gallery.search)
        tasks = [asyncio.create_task(searches.hits(row(n), PLAIN)) for n in range(3)]
        asyncio.get_running_loop().call_soon(tasks[1].cancel)
        await asyncio.gather(*tasks, return_exceptions=True)
        await searches.hits(row(3), PLAIN)
        return gallery

    assert [values for _, values in asyncio.run(test()).calls] == [[0, 2], [3]]


def test_a_failure_reaches_all_who_asked() -> None:
    async def test() -> list[object]:
        searches = SearchBatcher(Gallery().search)
        return await asyncio.gather(
            *(searches.hits(row(n), PLAIN) for n in (12, 13)), return_exceptions=True
        )

    assert [str(each) for each in asyncio.run(test())] == ["thirteen", "thirteen"]


def test_a_lone_search_does_not_wait() -> None:
    async def test() -> None:
        searches = SearchBatcher(Gallery().search)
        await asyncio.wait_for(searches.hits(row(1), PLAIN), 5)

    asyncio.run(test())


def test_nothing_is_kept_behind() -> None:
    async def test() -> SearchBatcher:
        searches = SearchBatcher(Gallery().search)
        await asyncio.gather(*(searches.hits(row(n), PLAIN) for n in range(12)))
        await asyncio.sleep(0)
        return searches

    searches = asyncio.run(test())
    assert not searches._gathering
    assert not searches._tasks
