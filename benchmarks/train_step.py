"""Measures what ODBA and MSRCI add to the time of a training step, with its bound.

    python benchmarks/train_step.py [--rounds 40]

This measures one step (forward, backward, Adam) of the base loss, + ODBA, + MSRCI and full CouCE.
It uses `tiny` with batches of 120, and resnet50 with batches of 16 at 224 pixels. The four take
turns in one process. Their order changes with every turn, so that all have the same noise. A ratio
is the median over the turns, for wall-clock time and for processor time. Other programs on the
machine affect processor time less. The bound is the ratio of floating-point operations, forward and
backward; for MSRCI, it is 1 + the share that stage2 repeats. The peak memory is that of a separate
process which does nothing else. `couce analyze overhead` measures all rows of the paper's table.
"""

import argparse

from couce.train.figures.overhead import measure
from couce.train.figures.steps import Case

CASES = {"tiny": Case("tiny", 120, 64), "resnet50": Case("resnet50", 16, 224)}
METHODS = ("base", "+ ODBA", "+ MSRCI", "CouCE, K = 2048")


def compare(case: Case, rounds: int) -> None:
    found = measure(case, rounds, METHODS)
    print(f"\n{case.backbone}, batch {case.batch}, {case.pixels} pixels, {rounds} turns")
    print(f"{'':16}{'ms':>8}{'ratio':>8}{'of CPU':>8}{'bound':>7}{'ratio/bound':>13}{'peak':>9}")
    for method, cost in found.items():
        peak = "" if cost.memory is None else f"{cost.memory / 1e6:6.0f} MB"
        print(
            f"{method:16}{cost.ms:8.1f}{cost.ratio:8.3f}{cost.cpu:8.3f}"
            f"{cost.bound:7.3f}{cost.ratio / cost.bound:13.3f}{peak}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=40, help="turns of each step")
    parser.add_argument(
        "--backbone", choices=CASES, action="append", help="measure only this backbone"
    )
    arguments = parser.parse_args()
    for backbone in arguments.backbone or CASES:
        compare(CASES[backbone], arguments.rounds)


if __name__ == "__main__":
    main()
