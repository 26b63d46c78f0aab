"""Which image files a gallery consists of, and what is known of them before they are opened."""

import csv
import os
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from couce.data.folders import has_halves, image_files, place_of
from couce.errors import CouceError


@dataclass(frozen=True)
class Entry:
    """A file of the gallery."""

    path: str  # absolute
    size: int
    stamp: int  # st_mtime_ns
    label: str | None = None
    id: str | None = None  # of its own, from a list
    metadata: Mapping[str, Any] = field(default_factory=dict)


class Listed(NamedTuple):
    """A row of a list of labels."""

    label: str | None
    id: str | None
    metadata: dict[str, str]


class Shard(NamedTuple):
    """The i-th of n parts of a gallery, i from 1: every file is in exactly one, wherever it is asked."""

    part: int
    parts: int

    @classmethod
    def parse(cls, text: str) -> "Shard":
        """
        >>> Shard.parse("2/8")
        Shard(part=2, parts=8)
        """
        part, _, parts = text.partition("/")
        if not (part.isdecimal() and parts.isdecimal() and 1 <= int(part) <= int(parts)):
            raise CouceError(f"a shard is written i/n, from 1/n to n/n, not {text!r}")
        return cls(int(part), int(parts))

    def holds(self, path: str) -> bool:
        return zlib.crc32(os.fsencode(path)) % self.parts == self.part - 1


def scan(root: Path, labels: Path | None = None, shard: Shard | None = None) -> list[Entry]:
    """All images below ``root``. Their label is the class folder they are in, or what the list
    ``labels`` says."""
    if not root.is_dir():
        raise CouceError(f"there is no folder {root} to take images from")
    listed = _read_list(labels, root) if labels is not None else None
    entries = list(_entries(root, listed, shard))
    if not entries and shard is None:
        raise CouceError(f"there are no images in {root}")
    return entries


def absolute(path: Path) -> str:
    """By which the index knows a file: from wherever it is asked, but through links as they are named."""
    return os.path.abspath(path)  # noqa: PTH100 (resolve would follow links)


def _entries(root: Path, listed: dict[str, Listed] | None, shard: Shard | None) -> Iterator[Entry]:
    files = {absolute(path): path for path in image_files(root)}
    # What a list names is an image, whatever its name ends in.
    files |= {name: Path(name) for name in listed or () if name not in files}
    beginning = absolute(root).rstrip("/") + "/"
    halves = has_halves(root)
    for name, path in files.items():
        if shard is not None and not shard.holds(name.removeprefix(beginning)):
            continue
        about = Listed(_folder(path, root, halves), None, {})
        if listed is not None:
            about = listed.get(name, Listed(None, None, {}))
        try:
            found = path.stat()
            if not path.is_dir():
                yield Entry(name, found.st_size, found.st_mtime_ns, *about)
        except OSError:  # not there, or a link to nowhere: said when it is read
            yield Entry(name, -1, -1, *about)


def _folder(path: Path, root: Path, halves: bool) -> str | None:
    label = place_of(path, root, halves).label if path.is_relative_to(root) else None
    # A label is text: what of a folder's name is not UTF-8 is written out.
    return None if label is None else os.fsencode(label).decode(errors="backslashreplace")


def _read_list(path: Path, root: Path) -> dict[str, Listed]:
    """Rows with the columns path (from the gallery's folder) and label, perhaps id; any others are
    metadata."""
    try:
        with path.open(newline="", encoding="utf-8-sig", errors="surrogateescape") as file:
            reader = csv.DictReader(file)
            columns = reader.fieldnames or ()
            rows = list(reader)
    except csv.Error as error:
        raise CouceError(f"{path} is not a CSV file: {error}") from None
    if not {"path", "label"} <= set(columns):
        raise CouceError(f"{path} must have the columns path and label, and a row for each image")
    found = {}
    for number, row in enumerate(rows, 2):
        if None in row or row["path"] is None:
            raise CouceError(
                f"{path}, row {number}: it has not as many fields as there are columns"
            )
        metadata = {
            key: value
            for key, value in row.items()
            if key not in ("path", "label", "id") and value not in (None, "")
        }
        name = absolute(root / row["path"])
        found[name] = Listed(row["label"] or None, row.get("id") or None, metadata)
    return found
