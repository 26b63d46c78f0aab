"""The lock that lets only one process write to an index."""

import fcntl
import os
from pathlib import Path

from couce.errors import CouceError


class WriterLock:
    """A lock on a file. When the process ends, even by a crash, the kernel releases it."""

    def __init__(self, path: Path) -> None:
        self._handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.read(self._handle, 32).decode(errors="replace").strip()
            os.close(self._handle)
            raise CouceError(
                f"process {owner or 'unknown'} is writing to {path.parent}; wait until it ends, or"
                " stop it"
            ) from None
        os.ftruncate(self._handle, 0)
        os.pwrite(self._handle, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1
