"""Times of things that take turns, so that the machine's noise meets them alike."""

import random
import statistics
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np


class Times(NamedTuple):
    """Seconds, turn by turn."""

    wall: list[float]
    cpu: list[float]  # of this process: what other guests of the machine do not take from


def time_in_turn(
    calls: Sequence[Callable[[], object]], rounds: int, warm_up: int = 1
) -> list[Times]:
    """Each of ``calls`` once a turn, in another order each turn; the first ``warm_up`` do not count.

    Shuffled, not rotated: what ran before leaves caches and freed memory in its own state.
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
    """Milliseconds, the median of the ratios to ``base``, turn by turn, and its 95 % interval."""
    ratios = np.array(times) / np.array(base)
    rng = np.random.default_rng(0)
    medians = np.median(rng.choice(ratios, (2000, len(ratios))), axis=1)
    low, high = np.percentile(medians, [2.5, 97.5])
    return 1e3 * statistics.median(times), float(np.median(ratios)), float(low), float(high)
