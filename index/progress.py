"""Shows the progress of long work: a bar on a terminal, and log lines elsewhere."""

import logging
import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

log = logging.getLogger(__name__)

_EVERY = 30.0  # seconds between two log lines


class ProgressBar:
    """Counts images or items, as ``what`` says."""

    def __init__(self, what: str = "images") -> None:
        console = Console(highlight=False, markup=False)
        self._shown = console.is_terminal or console.is_jupyter
        self._what = what
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]:.0f}/s"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not self._shown,
        )
        self._task = self._bar.add_task(what, total=None, rate=0.0)
        self._start = self._said = time.perf_counter()

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._bar.stop()

    def update(self, done: int, total: int | None = None) -> None:
        now = time.perf_counter()
        rate = done / max(now - self._start, 1e-9)
        self._bar.update(self._task, completed=done, total=total, rate=rate)
        if not self._shown and now - self._said > _EVERY:
            self._said = now
            left = f", {(total - done) / rate:.0f} s left" if total and rate else ""
            of = f" of {total}" if total else ""
            log.info("%s%s %s, %.0f/s%s", done, of, self._what, rate, left)
