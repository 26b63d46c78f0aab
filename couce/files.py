"""Files that are replaced completely or not at all, also in a crash or a loss of power."""

import hashlib
import os
import threading
from collections.abc import Callable
from pathlib import Path


def replace_file(path: Path, write: Callable[[Path], object]) -> None:
    """Replaces ``path`` by what ``write`` writes, completely or not at all.

    ``write`` writes to a file beside it, one for each thread. Its content is on the disk before it
    is renamed, and the new name is on the disk before this function returns.
    """
    part = path.with_name(f"{path.name}.{os.getpid()}-{threading.get_ident()}.part")
    try:
        write(part)
        with part.open("rb") as file:
            os.fsync(file.fileno())
        part.rename(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Writes a folder to the disk, so that new and renamed files in it survive a loss of power."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def printable(text: str) -> str:
    """The text on one line, with escapes for all characters that a terminal cannot show."""
    plain = text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in plain)
