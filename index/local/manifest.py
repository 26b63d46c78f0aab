"""The manifest of an index in a folder: it names the FAISS file and describes its structure.

It can be rebuilt from the catalog.
"""

import json
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from couce.config import Settings
from couce.errors import CouceError
from couce.files import checksum, replace_file

FORMAT = 1
NAME = "manifest.json"
# The checksum of a file up to this size is computed whenever the file is opened.
_SMALL = 64 * 2**20


class Measured(Settings):
    """How the structure compares with exact search, for queries that are not in the index."""

    recall: float  # the share of the true k nearest neighbours that was found
    k: int
    queries: int
    milliseconds: float  # of a single query, the median
    exact_milliseconds: float | None
    bytes: int  # of the file, which is in memory after some searches
    reached: bool  # whether the recall is at least the one that was asked for


class Structure(Settings):
    """A search structure: what the user asked for, and the FAISS structure that was built."""

    asked: str = "auto"  # the value of --type
    recall: float = 0.99  # the value of --recall
    factory: str = "IDMap,Flat"  # the factory string of FAISS
    effort: int = 0  # nprobe or efSearch; 0 if the structure has neither
    refine: int = 0  # refine·k candidates are ranked again by their vectors; 0: no need to
    built_for: int = 0  # the number of vectors when it was trained and measured
    measured: Measured | None = None


class VectorFile(Settings):
    """The FAISS file, with all that is needed to recognise it."""

    name: str = Field(pattern=r"^vectors-\d+\.faiss$")
    sha256: str
    size: int
    mtime_ns: int
    inode: int

    @classmethod
    def of(cls, path: Path) -> "VectorFile":
        found = path.stat()
        return cls(
            name=path.name,
            sha256=checksum(path),
            size=found.st_size,
            mtime_ns=found.st_mtime_ns,
            inode=found.st_ino,
        )

    def fault(self, folder: Path, thorough: bool = False) -> str | None:
        """What is wrong with the file, or None if it is the file that was written.

        A hostile FAISS file could run any code in the process that loads it. So a file is loaded
        only if its checksum shows that we wrote it. But the checksum of some gigabytes would take
        most of the time of opening. So a large file counts as ours if its size, modification time
        and inode are unchanged. An attacker who can fake these can also write a manifest.

        `couce index verify` is ``thorough``: it always computes the checksum, and so it also finds
        faults of the disk.
        """
        path = folder / self.name
        try:
            found = path.stat()
        except OSError:
            return "is missing"
        if found.st_size != self.size:
            return f"has {found.st_size} bytes instead of {self.size}"
        untouched = (found.st_mtime_ns, found.st_ino) == (self.mtime_ns, self.inode)
        if untouched and self.size > _SMALL and not thorough:
            return None
        return None if checksum(path) == self.sha256 else "is damaged: its checksum is wrong"


class Manifest(Settings):
    """The content of ``manifest.json``."""

    format: Literal[1] = 1
    catalog: str = ""  # the identity of the catalog
    model_hash: str | None = None
    dim: int | None = None
    revision: int = 0  # the revision of the catalog whose vectors the FAISS file has
    count: int = 0  # of the vectors in the FAISS file
    last: int = 0  # the highest row number in the FAISS file
    structure: Structure = Structure()
    file: VectorFile | None = None

    def write(self, folder: Path) -> None:
        text = json.dumps(self.model_dump(), indent=2) + "\n"
        replace_file(folder / NAME, lambda part: _write(part, text))

    @classmethod
    def read(cls, folder: Path) -> "Manifest":
        path = folder / NAME
        try:
            values: Any = json.loads(path.read_text())
        except FileNotFoundError:
            raise CouceError(f"{path} is missing") from None
        except ValueError:
            raise CouceError(f"{path} is damaged: it is not JSON") from None
        if not isinstance(values, dict):
            raise CouceError(f"{path} is damaged: it does not describe an index")
        if isinstance(values.get("format"), int) and values["format"] > FORMAT:
            raise NewerFormatError(
                f"{path} has format {values['format']}, but this version of CouCE only reads format"
                f" {FORMAT}; use the version that wrote it"
            )
        try:
            return cls.parse(values)
        except CouceError as error:
            raise CouceError(f"{path} is damaged: {error}") from None


class NewerFormatError(CouceError):
    """The manifest is of a newer version. It is not damaged and must not be replaced."""


def _write(path: Path, text: str) -> None:
    path.write_text(text)
