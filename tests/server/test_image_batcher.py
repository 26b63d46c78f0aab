"""Images of several requests become batches."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import TypeVar

import numpy as np
import pytest
from numpy.typing import NDArray

from couce.server.image_batcher import Embedded, ImageBatcher, Pixels

_T = TypeVar("_T")


class Model:
    """A model whose embedding is the first number of an image. It waits until ``go_on`` is set."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.batches: list[list[int]] = []
        self.inside = 0

    def __call__(self, pixels: Pixels) -> NDArray[np.float32]:
        self.inside += 1
        assert self.go_on.wait(10)
        self.inside -= 1
        values = [int(each) for each in pixels[:, 0, 0, 0]]
        if 13 in values:
            raise ValueError("thirteen")
        self.batches.append(values)
        return np.array([[value] for value in values], np.float32)


def image(value: int) -> Pixels:
    return np.full((1, 1, 3), value, np.uint8)


def run(test: Callable[[Model], Awaitable[_T]]) -> tuple[_T, Model]:
    model = Model()

    async def inside() -> _T:
        try:
            return await asyncio.wait_for(test(model), 10)
        finally:
            model.go_on.set()

    return asyncio.run(inside()), model


async def gathered(batcher: ImageBatcher, values: range) -> list[asyncio.Task[Embedded]]:
    tasks = [asyncio.create_task(batcher.embed(image(value))) for value in values]
    await asyncio.sleep(0.01)
    return tasks


def test_what_waits_while_the_model_is_busy_goes_together_in_powers_of_two() -> None:
    async def test(model: Model) -> list[float]:
        batcher = ImageBatcher(model, 8, 0.0)
        tasks = await gathered(batcher, range(1))
        tasks += await gathered(batcher, range(1, 12))
        model.go_on.set()
        rows = [float((await task).row[0]) for task in tasks]
        await batcher.close()
        return rows

    rows, model = run(test)
    assert rows == list(range(12))  # each image has its own answer
    assert model.batches == [[0], list(range(1, 9)), [9, 10], [11]]


def test_a_lone_image_has_all_cores_and_several_share_two_lanes() -> None:
    lane = Model()

    async def test(model: Model) -> list[float]:
        batcher = ImageBatcher(model, 8, 0.0, lane=lane)
        alone = await gathered(batcher, range(1))
        tasks = await gathered(
            batcher, range(1, 6)
        )  # more than a batch; the lone image keeps both lanes
        assert model.inside == 1
        assert lane.inside == 0
        model.go_on.set()
        await asyncio.gather(*alone)
        tasks += await gathered(batcher, range(20, 31))
        assert lane.inside == 2  # two batches at a time, and a third one waits
        assert sum(map(len, model.batches)) == 1
        lane.go_on.set()
        rows = [float((await task).row[0]) for task in tasks]
        last = await batcher.embed(image(40))
        await batcher.close()
        return [*rows, float(last.row[0])]

    rows, model = run(test)
    assert rows == [*range(1, 6), *range(20, 31), 40]
    assert model.batches == [[0], [40]]
    assert max(map(len, lane.batches)) == 8 // 2


def test_two_free_lanes_share_what_waits_unless_more_is_coming() -> None:
    lane = Model()

    async def test(model: Model) -> None:
        batcher = ImageBatcher(model, 8, 0.05, lane=lane)
        lane.go_on.set()
        tasks = await gathered(batcher, range(4))
        await asyncio.gather(*tasks)
        with batcher.coming():
            tasks = await gathered(batcher, range(4, 8))
        tasks += await gathered(batcher, range(8, 10))
        await asyncio.gather(*tasks)
        await batcher.close()
        model.go_on.set()

    run(test)
    assert sorted(lane.batches) == [[0, 1], [2, 3], [4, 5, 6, 7], [8], [9]]


def test_a_lone_image_does_not_wait_for_company() -> None:
    async def test(model: Model) -> float:
        model.go_on.set()
        batcher = ImageBatcher(model, 8, wait=60.0)
        with batcher.coming():  # the same image while it is decoded
            pass
        answer = await batcher.embed(image(1))
        await batcher.close()
        return answer.waited

    waited, _ = run(test)
    assert waited < 30


def test_a_batch_waits_for_what_is_being_decoded_but_not_for_ever() -> None:
    async def test(model: Model) -> None:
        model.go_on.set()
        batcher = ImageBatcher(model, 8, wait=0.2)
        with batcher.coming():
            first = await gathered(batcher, range(1))
            assert not first[0].done()
            second = await gathered(batcher, range(1, 2))
        await asyncio.gather(*first, *second)
        with batcher.coming():  # one that never arrives
            await batcher.embed(image(2))
        await batcher.close()

    _, model = run(test)
    assert model.batches == [[0, 1], [2]]


def test_who_leaves_is_left_out() -> None:
    async def test(model: Model) -> None:
        batcher = ImageBatcher(model, 8, 0.0)
        tasks = await gathered(batcher, range(1))
        tasks += await gathered(batcher, range(1, 4))
        tasks[2].cancel()
        await asyncio.sleep(0)
        model.go_on.set()
        await asyncio.gather(*tasks, return_exceptions=True)
        await batcher.close()

    _, model = run(test)
    assert sorted(value for batch in model.batches for value in batch) == [0, 1, 3]


def test_an_image_that_fails_fails_alone() -> None:
    async def test(model: Model) -> list[object]:
        batcher = ImageBatcher(model, 4, 0.0)
        tasks = await gathered(batcher, range(10, 15))
        model.go_on.set()
        found = await asyncio.gather(*tasks, return_exceptions=True)
        await batcher.close()
        return [f.row[0] if isinstance(f, Embedded) else str(f) for f in found]

    found, _ = run(test)
    assert found == [10, 11, 12, "thirteen", 14]


@pytest.mark.parametrize(("asked", "used"), [(1, 1), (2, 2), (7, 4), (16, 16), (31, 16)])
def test_sizes_are_powers_of_two(asked: int, used: int) -> None:
    async def size() -> int:
        batcher = ImageBatcher(Model(), asked, 0.0)
        await batcher.close()
        return batcher.size

    assert asyncio.run(size()) == used
