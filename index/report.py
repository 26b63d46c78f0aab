"""What is told of a build: a bar on a terminal, a line now and then elsewhere."""

import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

_EVERY = 30.0  # seconds between lines where there is no terminal


class Report:
    def __init__(self, what: str = "images") -> None:
        self.console = Console(highlight=False, markup=False)
        self._what = what
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]:.0f}/s"),
            TimeRemainingColumn(),
            console=self.console,
            transient=True,
            disable=not self.console.is_terminal,
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

    def say(self, line: str) -> None:
        # A file's name may have bytes that are no text, and the terminal may not know every letter.
        encoding = self.console.encoding or "utf-8"
        plain = line.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
        self.console.print(
            plain.encode(encoding, "backslashreplace").decode(encoding), soft_wrap=True
        )

    def progress(self, done: int, total: int | None = None) -> None:
        now = time.perf_counter()
        rate = done / max(now - self._start, 1e-9)
        self._bar.update(self._task, completed=done, total=total, rate=rate)
        if not self.console.is_terminal and now - self._said > _EVERY:
            self._said = now
            left = f", {(total - done) / rate:.0f} s left" if total and rate else ""
            of = f" of {total}" if total else ""
            self.say(f"{done}{of} {self._what}, {rate:.0f}/s{left}")
