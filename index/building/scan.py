"""Lists the image files of a gallery, with all that is known before a file is opened."""

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
    id: str | None = None  # from the list of labels
    metadata: Mapping[str, Any] = field(default_factory=dict)


class Listed(NamedTuple):
    """A row of a list of labels."""

    label: str | None
    id: str | None
    metadata: dict[str, str]


class Shard(NamedTuple):
    """The i-th of n parts of a gallery, from 1. On every machine, a file is in the same part."""

    part: int
    parts: int

    @classmethod
    def parse(cls, text: str) -> "Shard":
        """Parses ``"i/n"``.

        >>> Shard.parse("2/8")
        Shard(part=2, parts=8)
        """
        part, _, parts = text.partition("/")
        if not (part.isdecimal() and parts.isdecimal() and 1 <= int(part) <= int(parts)):
            raise CouceError(f"write a shard as i/n, from 1/n to n/n, not {text!r}")
        return cls(int(part), int(parts))

    def holds(self, path: str) -> bool:
        return zlib.crc32(os.fsencode(path)) % self.parts == self.part - 1


def scan(root: Path, labels: Path | None = None, shard: Shard | None = None) -> list[Entry]:
    """All images below ``root``.

    An image's label comes from the list ``labels``. Without a list, it is its class folder.
    """
    if not root.is_dir():
        raise CouceError(f"there is no folder {root}; give the folder of your images")
    listed = _read_list(labels, root) if labels is not None else None
    entries = list(_entries(root, listed, shard))
    if not entries and shard is None:
        raise CouceError(f"there are no images in {root}; give the folder of your images")
    return entries


def absolute(path: Path) -> str:
    """The absolute path by which an index knows a file. Links in it are not followed."""
    return os.path.abspath(path)  # noqa: PTH100 (resolve would follow links)


def _entries(root: Path, listed: dict[str, Listed] | None, shard: Shard | None) -> Iterator[Entry]:
    files = {absolute(path): path for path in image_files(root)}
    # All files in the list count as images, whatever their names end in.
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
        except OSError:  # a missing file is reported later, when it is read
            yield Entry(name, -1, -1, *about)


def _folder(path: Path, root: Path, halves: bool) -> str | None:
    label = place_of(path, root, halves).label if path.is_relative_to(root) else None
    # A label must be text, so bytes that are not UTF-8 are written as escapes.
    return None if label is None else os.fsencode(label).decode(errors="backslashreplace")


def _read_list(path: Path, root: Path) -> dict[str, Listed]:
    """Reads a CSV file with the columns path and label, and optionally id.

    Paths are relative to the gallery's folder. All other columns become metadata.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig", errors="surrogateescape") as file:
            reader = csv.DictReader(file)
            columns = reader.fieldnames or ()
            rows = list(reader)
    except csv.Error as error:
        raise CouceError(
            f"{path} is not a valid CSV file ({error}); save it again as CSV"
        ) from None
    if not {"path", "label"} <= set(columns):
        raise CouceError(f"{path} must have the columns path and label; name them in its first row")
    found = {}
    for number, row in enumerate(rows, 2):
        if None in row or row["path"] is None:
            raise CouceError(
                f"row {number} of {path} has more or fewer fields than the first row; correct it"
            )
        metadata = {
            key: value
            for key, value in row.items()
            if key not in ("path", "label", "id") and value not in (None, "")
        }
        name = absolute(root / row["path"])
        found[name] = Listed(row["label"] or None, row.get("id") or None, metadata)
    return found
