"""What stands beside the catalog: which FAISS file belongs to it and what was measured of it.

All of it can be made anew from the catalog.
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
# A file of up to this size is read for its checksum whenever it is opened.
_SMALL = 64 * 2**20


class Measured(Settings):
    """Of the structure, against exact search, with queries near to but not in the gallery."""

    recall: float  # share of the true 10 nearest that were found
    k: int
    queries: int
    milliseconds: float  # of a single query, the middle one
    exact_milliseconds: float | None
    bytes: int  # of the file, all of which is memory once it was searched
    reached: bool  # whether the recall that was asked for was


class Structure(Settings):
    """How the vectors are arranged for search."""

    asked: str = "auto"  # as --type had it
    recall: float = 0.99  # as --recall had it
    factory: str = "IDMap,Flat"
    effort: int = 0  # nprobe or efSearch; 0 where there is neither
    refine: int = 0  # how many times k are ranked anew by their true vectors; 0: scores are true
    built_for: int = 0  # how many vectors there were when it was learned and measured
    measured: Measured | None = None


class VectorFile(Settings):
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
        """What is wrong with the file, or None if it is the one that was written.

        A FAISS file can make its reader do anything, so none is loaded that is not ours. Reading
        gigabytes for their checksum would take longer than all the rest of opening, though: a large file
        whose size, time of writing and inode are those we left it with is taken for ours. Whoever could
        fake these could as well write a manifest. ``verify`` is thorough and sees decay of the disk too.
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
        return None if checksum(path) == self.sha256 else "is damaged: its checksum is another"


class Manifest(Settings):
    format: Literal[1] = 1
    catalog: str = ""  # its identity
    model_hash: str | None = None
    dim: int | None = None
    revision: int = 0  # of the catalog that the FAISS file holds
    count: int = 0  # of vectors in it
    last: int = 0  # the highest number of a row in it
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
            raise CouceError(f"{path} is damaged: it is no description of an index")
        if isinstance(values.get("format"), int) and values["format"] > FORMAT:
            raise NewerFormatError(
                f"{path} has format {values['format']}, and this version of CouCE reads {FORMAT};"
                " use the version that wrote it"
            )
        try:
            return cls.parse(values)
        except CouceError as error:
            raise CouceError(f"{path} is damaged: {error}") from None


class NewerFormatError(CouceError):
    """Not damage: to be left alone, not written anew."""


def _write(path: Path, text: str) -> None:
    path.write_text(text)
