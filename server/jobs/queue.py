"""Starts evaluations, each in a process of its own, and keeps their state in files.

Every server that shares the folder can start, follow and cancel an evaluation. Searches do not
become slower, because the process has the lowest priority and one thread. One evaluation runs at a
time, and the others wait.
"""

import fcntl
import json
import os
import re
import secrets
import shutil
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import IO, Literal

from pydantic import BaseModel, Field, ValidationError

from couce.files import replace_file
from couce.server.http.problems import Problem
from couce.server.settings import ServerSettings

_KEPT = 20  # how many finished evaluations are kept
_WAITING = 8  # most evaluations that run or wait
_ID = re.compile(r"[0-9a-f]{16}")

Of = Literal["index", "queries", "embeddings"]


class Job(BaseModel):
    """The state of an evaluation, which GET /evaluate/{id} returns."""

    id: str = Field(examples=["8c1f0e5a2b7d4936"])
    of: Of
    state: Literal["queued", "running", "done", "failed", "cancelled"] = "queued"
    progress: float = Field(0.0, description="From 0 to 1.", examples=[0.8])
    stage: str = Field("waiting", examples=["embedding"])
    metrics: dict[str, float | None] | None = Field(
        None,
        description="The metrics as fractions, once it is done.",
        examples=[{"R@1": 0.71, "MAP@R": 0.27}],
    )
    detail: str | None = Field(None, description="Why it failed.")
    items: int | None = Field(None, examples=[5924])
    classes: int | None = Field(None, examples=[100])
    left_out: int = Field(
        0,
        description="How many items were left out: those without a label, and images that cannot be"
        " read.",
    )
    made: float = Field(
        description="When it was requested, in seconds since 1970.", examples=[1_767_225_600.0]
    )
    started: float | None = None
    ended: float | None = None

    @property
    def over(self) -> bool:
        return self.state in ("done", "failed", "cancelled")


class JobFolder:
    """The files of one evaluation."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.input = path / "input"
        self.cancel = path / "cancel"
        self.writing = threading.RLock()
        self._lock: IO[bytes] | None = None

    def read(self) -> Job:
        return Job.model_validate_json((self.path / "job.json").read_bytes())

    def write(self, job: Job) -> None:
        text = job.model_dump_json()
        with self.writing:
            replace_file(self.path / "job.json", lambda part: part.write_text(text))

    def hold(self) -> None:
        """Takes the lock that shows that somebody works on this evaluation.

        The server holds it first, and then the process that inherits it. The kernel releases the
        lock when they end, even if they are killed.
        """
        self._lock = (self.path / "alive").open("wb")
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    def held(self) -> tuple[int, ...]:
        """The file descriptor of the lock, which the new process inherits."""
        return () if self._lock is None else (self._lock.fileno(),)

    def let_go(self) -> None:
        if self._lock is not None:
            self._lock.close()

    def dead(self) -> bool:
        """Whether nobody works on this evaluation any more."""
        try:
            with (self.path / "alive").open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except FileNotFoundError:
            pass
        return True

    def remove(self) -> None:
        self.let_go()
        shutil.rmtree(self.path, ignore_errors=True)


class Jobs:
    """The evaluations in a folder."""

    def __init__(self, folder: Path, settings: ServerSettings) -> None:
        self._folder, self._settings = folder, settings
        self._children: list[subprocess.Popen[bytes]] = []

    def prepare(self) -> JobFolder:
        """Makes the folder of a new evaluation, into which its input is written."""
        arriving = [path for path in self._folders() if not (path / "job.json").exists()]
        busy = sum(not JobFolder(path).dead() for path in arriving)
        if busy + sum(not job.over for job in self.all()) >= _WAITING:
            raise Problem(
                "overloaded",
                f"{_WAITING} evaluations are waiting; try again in a minute",
                {"Retry-After": "60"},
            )
        found = JobFolder(self._folder / secrets.token_hex(8))
        found.path.mkdir(parents=True)
        found.hold()
        return found

    def start(self, found: JobFolder, of: Of) -> Job:
        """Starts the process of an evaluation whose input has arrived."""
        found.write(Job(id=found.path.name, of=of, made=time.time()))
        settings = {
            "model": str(self._settings.model),
            "index": self._settings.index,
            "preprocess": list(self._settings.preprocess),
            "max_pixels": self._settings.max_pixels,
        }
        self._children.append(
            subprocess.Popen(  # noqa: S603 (this program itself, without a shell)
                [
                    *(sys.executable, "-m", "couce.server.jobs.evaluation"),
                    *(str(found.path.absolute()), json.dumps(settings)),
                ],
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                pass_fds=found.held(),
            )
        )
        found.let_go()
        self._sweep()
        return found.read()

    def get(self, id: str) -> Job:
        self._children = [child for child in self._children if child.poll() is None]
        if not _ID.fullmatch(id):
            raise _missing(id)
        found = JobFolder(self._folder / id)
        try:
            job = found.read()
        except (FileNotFoundError, ValidationError):
            raise _missing(id) from None
        if not job.over and found.dead():
            job = found.read()  # it may have ended in the meantime
            if not job.over:
                job.state, job.detail = (
                    "failed",
                    "its process ended without a result; start it again",
                )
                job.ended = (found.path / "job.json").stat().st_mtime
                found.input.unlink(missing_ok=True)
        return job

    def cancel(self, id: str) -> Job:
        job = self.get(id)
        if not job.over:
            (self._folder / id / "cancel").touch()
        return job

    def all(self) -> list[Job]:
        """All evaluations, the newest first."""
        found = []
        for path in self._folders():
            with suppress(Problem):
                found.append(self.get(path.name))
        return sorted(found, key=lambda job: -job.made)

    def _folders(self) -> list[Path]:
        if not self._folder.is_dir():
            return []
        return [path for path in self._folder.iterdir() if path.is_dir()]

    def _sweep(self) -> None:
        """Removes old evaluations, and folders whose input never arrived."""
        for job in [job for job in self.all() if job.over][_KEPT:]:
            JobFolder(self._folder / job.id).remove()
        for path in self._folders():
            with suppress(FileNotFoundError):
                if not (path / "job.json").exists() and path.stat().st_mtime < time.time() - 60:
                    found = JobFolder(path)
                    if found.dead():
                        found.remove()


def _missing(id: str) -> Problem:
    return Problem("not_found", f"there is no evaluation {id[:60]!r}")
