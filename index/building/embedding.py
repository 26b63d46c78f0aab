"""Embeds files for a build: the interface, and the embedding in this process."""

import hashlib
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from couce.embedder import Embedder
from couce.index.base import ID_DIGITS
from couce.index.building.scan import Entry
from couce.preprocess import ImageError


class Outcome(NamedTuple):
    """The result for one file.

    It has a vector, or a fault, or neither if another file or item has the same bytes.
    """

    entry: Entry  # with the size and stamp that the file had when it was read
    id: str
    sha256: str
    vector: NDArray[np.float32] | None
    fault: str | None


class EmbedFiles(Protocol):
    def __call__(
        self, entries: Sequence[Entry], known: Mapping[str, str | None]
    ) -> Iterator[Outcome]:
        """Yields an outcome for each entry.

        ``known`` maps the ids of the index to their sha256. These files are not embedded again.
        """


class KnownContentError(ImageError):
    """Says that the same bytes are already embedded or will be. It is no fault of the file.

    The embedder returns this error in place of a vector.
    """


class Claims:
    """Decides which files are embedded, for several threads: the same bytes only once."""

    def __init__(self, known: Mapping[str, str | None]) -> None:
        self._known, self._claimed, self._lock = known, dict[str, str](), threading.Lock()
        self._taken: set[str] = set()

    def take(self, id: str, sha256: str) -> bool:
        """Whether the caller has to embed these bytes."""
        with self._lock:
            if self._known.get(id) == sha256:
                return False
            claimed = self._claimed.setdefault(id, sha256)
            if claimed != sha256:
                raise ImageError(f"another file has the id {id!r}, too; give each its own id")
            if id in self._taken:
                return False
            self._taken.add(id)
            return True


def read(entry: Entry) -> tuple[Entry, bytes, str, str]:
    """Reads a file. Returns its entry with its present size and stamp, its bytes, sha256 and id."""
    try:
        with Path(entry.path).open("rb") as file:
            found = os.fstat(file.fileno())
            content = file.read()
    except OSError as error:
        raise ImageError((error.strerror or str(error)).lower()) from None
    digest = hashlib.sha256(content).hexdigest()
    fresh = Entry(
        entry.path, len(content), found.st_mtime_ns, entry.label, entry.id, entry.metadata
    )
    return fresh, content, digest, entry.id or digest[:ID_DIGITS]


def in_process(embedder: Callable[[], Embedder]) -> EmbedFiles:
    """Embeds in this process: threads decode images while the model runs.

    The model is only loaded if there are files to read.
    """

    def embed_files(entries: Sequence[Entry], known: Mapping[str, str | None]) -> Iterator[Outcome]:
        if not entries:
            return
        claims = Claims(known)
        seen: dict[int, tuple[Entry, str, str]] = {}

        def source(place: int) -> Callable[[], bytes]:
            def fetch() -> bytes:
                fresh, content, digest, id = read(entries[place])
                seen[place] = (fresh, digest, id)
                if not claims.take(id, digest):
                    raise KnownContentError(id)
                return content

            return fetch

        rows = embedder().stream(source(place) for place in range(len(entries)))
        for place, row in enumerate(rows):
            fresh, digest, id = seen.pop(place, (entries[place], "", ""))
            if isinstance(row, KnownContentError):
                yield Outcome(fresh, id, digest, None, None)
            elif isinstance(row, ImageError):
                yield Outcome(fresh, id, digest, None, str(row))
            else:
                yield Outcome(fresh, id, digest, row, None)

    return embed_files
