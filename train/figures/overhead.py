"""`couce analyze overhead`: the cost of ODBA and MSRCI in training and inference.

Paper, Table overhead.
"""

import logging
from typing import NamedTuple

from matplotlib.axes import Axes

from couce.machine.timing import compare_times, time_in_turn
from couce.report.plots import draw, grouped
from couce.report.section import Section, Table
from couce.train.figures.steps import ROWS, Bench, Case, operations, peak_memory

log = logging.getLogger(__name__)


class Cost(NamedTuple):
    ms: float  # the median time of a training step
    ratio: float  # the median over the turns of its time divided by that of base
    low: float  # the 95 % interval of this ratio
    high: float
    cpu: float  # the ratio of processor times
    bound: float  # the ratio of operations: the least that the added arithmetic must cost
    memory: int | None  # bytes
    inference: float  # the median time of a batch in ms
    inference_ratio: float


def measure(
    case: Case,
    rounds: int,
    rows: tuple[str, ...] = tuple(ROWS),
    memory: bool = True,
) -> dict[str, Cost]:
    """The cost of each of ``rows``, compared with the first one."""
    bench = Bench(case)
    steps = [bench.step(row) for row in rows]
    log.info("timing %d kinds of step in turn, %d times", len(rows), rounds)
    times = time_in_turn(steps, rounds)
    counts = [operations(step) for step in steps]
    inferences = time_in_turn([bench.inference] * len(rows), rounds)
    del bench, steps
    found = {}
    for n, row in enumerate(rows):
        if memory:
            log.info("measuring the memory of %s", row)
        found[row] = Cost(
            *compare_times(times[n].wall, times[0].wall),
            cpu=compare_times(times[n].cpu, times[0].cpu)[1],
            bound=counts[n] / counts[0],
            memory=peak_memory(case, row) if memory else None,
            inference=compare_times(inferences[n].wall, inferences[0].wall)[0],
            inference_ratio=compare_times(inferences[n].wall, inferences[0].wall)[1],
        )
    return found


def overhead(
    case: Case,
    rounds: int,
    images: int,
    memory: bool = True,
) -> Section:
    """The tables and the figure. An epoch has ``images`` images."""
    found = measure(case, rounds, memory=memory)
    steps = max(1, images // case.batch)
    base = next(iter(found.values()))

    def paint(panels: list[Axes]) -> None:
        names = list(found)
        spread = [(cost.low, cost.high) for cost in found.values()]
        grouped(
            panels[0],
            names,
            {
                "time of a step / base": [cost.ratio for cost in found.values()],
                "bound by operations": [cost.bound for cost in found.values()],
            },
            {
                "time of a step / base": spread,
                "bound by operations": [(cost.bound, cost.bound) for cost in found.values()],
            },
        )
        panels[0].legend(fontsize=8)

    return Section(
        name="overhead",
        title="What the method costs",
        about=(
            f"{case.backbone}, batches of {case.batch} images of {case.pixels} pixels on"
            f" {case.device}. A step is forward, loss, backward and Adam with a full dictionary."
            f" All rows took turns, {rounds} times. An epoch is {steps} steps ({images} images)"
            " without loading images. The bound is the ratio of floating-point operations, forward"
            " and backward: the least that the added arithmetic must cost. Memory is the peak of a"
            " separate process.\n\n"
            "Inference is a batch through the embedding network in torch. The network is the same"
            " in every row and has no part of the method, so its times differ only by the noise of"
            " the machine. `couce export --certify` shows for exported models, node by node, that"
            " they are the same."
        ),
        tables=[
            Table(
                title="Training",
                columns=(
                    *("", "step, ms", "epoch, s", "/ base", "95 % interval"),
                    *("bound", "/ bound"),
                ),
                rows=tuple(
                    (
                        row,
                        f"{c.ms:.1f}",
                        f"{c.ms * steps / 1e3:.1f}",
                        f"{c.ratio:.3f}",
                        f"{c.low:.2f} to {c.high:.2f}",
                        f"{c.bound:.3f}",
                        f"{c.ratio / c.bound:.3f}",
                    )
                    for row, c in found.items()
                ),
            ),
            Table(
                title="Processor time and memory of training, and inference",
                columns=("", "CPU / base", "peak, MB", "inference, ms", "/ base"),
                rows=tuple(
                    (
                        row,
                        f"{c.cpu:.3f}",
                        _memory(c, base),
                        f"{c.inference:.1f}",
                        f"{c.inference_ratio:.3f}",
                    )
                    for row, c in found.items()
                ),
            ),
        ],
        pictures=[
            (draw(paint, width=6.5), "Time of a training step, as a multiple of the base loss's.")
        ],
        values={"case": case, "rounds": rounds, "steps": steps, "rows": found},
    )


def _memory(cost: Cost, base: Cost) -> str:
    if cost.memory is None or base.memory is None:
        return "unknown"
    return f"{cost.memory / 1e6:.0f} ({cost.memory / base.memory - 1:+.1%})"
