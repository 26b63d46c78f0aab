"""Runs a command of couce that trains, and kills this process at a given step of an epoch.

python killed.py EPOCH STEP train demo ...
"""

import os
import signal
import sys
from collections.abc import Iterator
from typing import Any

from couce.cli import main
from couce.train import loop
from couce.train.batches import Batch, training_batches


def run(kill_at: tuple[int, int], arguments: list[str]) -> None:
    def killed_batches(*given: Any) -> Iterator[Batch]:
        for step, batch in enumerate(training_batches(*given)):
            if (given[4], step) == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
            yield batch

    setattr(loop, "training_batches", killed_batches)  # noqa: B010 (the loop imports it by name)
    sys.argv = ["couce", *arguments]
    main()


if __name__ == "__main__":
    run((int(sys.argv[1]), int(sys.argv[2])), sys.argv[3:])
