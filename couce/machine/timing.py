"""Times several calls in turn, so that the noise of the machine affects all of them equally."""

import random
import statistics
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np


class Times(NamedTuple):
    """Seconds of each turn."""

    wall: list[float]
    cpu: list[float]  # of this process alone, so that other processes hardly affect them


def time_in_turn(
    calls: Sequence[Callable[[], object]], rounds: int, warm_up: int = 1
) -> list[Times]:
    """Times each of ``calls`` once per turn. The first ``warm_up`` turns do not count.

    The order is shuffled in each turn, because a call is affected by the caches and the freed
    memory that the call before it leaves. If the order were only rotated, almost every turn would
    have the same call before it.
    """
    times = [Times([], []) for _ in calls]
    order = random.Random(0)  # noqa: S311
    for turn in range(rounds + warm_up):
        for n in order.sample(range(len(calls)), len(calls)):
            start, start_cpu = time.perf_counter(), time.process_time()
            calls[n]()
            if turn >= warm_up:
                times[n].wall.append(time.perf_counter() - start)
                times[n].cpu.append(time.process_time() - start_cpu)
    return times


def compare_times(
    times: Sequence[float], base: Sequence[float]
) -> tuple[float, float, float, float]:
    """The median in milliseconds, the median ratio to ``base``, and the ratio's 95 % interval.

    The ratios are those of the same turn.
    """
    ratios = np.array(times) / np.array(base)
    rng = np.random.default_rng(0)
    medians = np.median(rng.choice(ratios, (2000, len(ratios))), axis=1)
    low, high = np.percentile(medians, [2.5, 97.5])
    return 1e3 * statistics.median(times), float(np.median(ratios)), float(low), float(high)
