"""The progress of a training: a bar on a terminal, a line for each epoch, and the log files."""

import json
import time
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from couce.train.loop import Epoch, Step


class TrainingProgress:
    """Shows steps and epochs, and writes ``log.jsonl`` and the event files of TensorBoard."""

    def __init__(self, folder: Path, epochs: int) -> None:
        from torch.utils.tensorboard import SummaryWriter  # takes a second to import

        self._console = Console(highlight=False, markup=False)
        self._epochs = epochs
        self._closing = ExitStack()
        self._log = self._closing.enter_context((folder / "log.jsonl").open("a"))
        self._events = self._closing.enter_context(SummaryWriter(str(folder)))
        self._bar = Progress(
            TextColumn("epoch {task.fields[epoch]}"),
            BarColumn(),
            TextColumn("{task.fields[losses]}  {task.fields[rate]:.0f} images/s"),
            TimeRemainingColumn(),
            console=self._console,
            transient=True,
            disable=not (self._console.is_terminal or self._console.is_jupyter),
        )
        self._task = self._bar.add_task("", total=None, epoch="", losses="", rate=0.0)
        self._start, self._images = time.perf_counter(), 0

    def __enter__(self) -> Self:
        self._closing.enter_context(self._bar)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._closing.close()

    def print(self, text: str) -> None:
        self._console.print(text, soft_wrap=True)  # no line breaks within paths

    def step(self, step: Step) -> None:
        self._images += step.images
        done = (step.epoch - 1) * step.steps + step.step
        self._events.add_scalar("loss/total", step.total, done)
        self._bar.update(
            self._task,
            completed=done,
            total=self._epochs * step.steps,
            epoch=f"{step.epoch}/{self._epochs}",
            losses=_listed(step.parts),
            rate=self._images / (time.perf_counter() - self._start),
        )

    def epoch(self, epoch: Epoch) -> None:
        seconds = time.perf_counter() - self._start
        rate = self._images / seconds
        record = {**epoch._asdict(), "seconds": round(seconds, 1), "images/s": round(rate, 1)}
        self._log.write(json.dumps(record) + "\n")
        self._log.flush()
        for group, values in (("loss", epoch.parts), ("metrics", epoch.metrics)):
            for name, value in values.items():
                self._events.add_scalar(f"{group}/{name}", value, epoch.epoch)
        measured = "".join(f"  {name} {100 * value:.1f}" for name, value in epoch.metrics.items())
        self.print(
            f"epoch {epoch.epoch}/{self._epochs}  {_listed(epoch.parts)}{measured}"
            f"{'  best' if epoch.best else ''}  {rate:.0f} images/s"
        )
        self._start, self._images = time.perf_counter(), 0


def _listed(parts: dict[str, float]) -> str:
    return "  ".join(f"{name} {value:.3f}" for name, value in parts.items())
