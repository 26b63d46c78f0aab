"""Files that are either the old ones or the new ones, whatever happens in between."""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path


def replace_file(path: Path, write: Callable[[Path], object]) -> None:
    """Gives ``path`` the content that ``write`` puts into a file beside it, all of it or none.

    The content reaches the disk before the name does, and the name before this returns.
    """
    part = path.with_name(f"{path.name}.part")
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
    """A new or renamed file survives a power loss once its folder is on the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def printable(text: str) -> str:
    """On one line and in letters that any terminal takes, whatever a file is called."""
    plain = text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in plain)
