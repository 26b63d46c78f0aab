"""One writer at a time."""

import fcntl
import os
from pathlib import Path

from couce.errors import CouceError


class WriterLock:
    """Held as long as the process that took it lives, however it ends: the kernel lets go of it."""

    def __init__(self, path: Path) -> None:
        self._handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.read(self._handle, 32).decode(errors="replace").strip()
            os.close(self._handle)
            raise CouceError(
                f"process {owner or 'unknown'} is writing to {path.parent}; let it finish, or stop it"
            ) from None
        os.ftruncate(self._handle, 0)
        os.pwrite(self._handle, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1
