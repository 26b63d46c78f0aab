"""From files to vectors: what a build needs, and how this process does it itself."""

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
    """What became of a file: a vector, an item that has its very bytes already, or a fault."""

    entry: Entry  # its size and stamp are those of when it was read
    id: str
    sha256: str
    vector: NDArray[np.float32] | None
    fault: str | None


class EmbedFiles(Protocol):
    def __call__(
        self, entries: Sequence[Entry], known: Mapping[str, str | None]
    ) -> Iterator[Outcome]:
        """An outcome for each entry. ``known`` maps the ids that the index has to their sha256: such a
        file is not embedded again."""


class KnownContentError(ImageError):
    """No fault: not embedded, since the same bytes are or are about to be. The embedder passes this on
    in the place of a vector."""


class Claims:
    """Which contents need embedding, asked by several threads: of the same bytes, once."""

    def __init__(self, known: Mapping[str, str | None]) -> None:
        self._known, self._claimed, self._lock = known, dict[str, str](), threading.Lock()
        self._taken: set[str] = set()

    def take(self, id: str, sha256: str) -> bool:
        with self._lock:
            if self._known.get(id) == sha256:
                return False
            claimed = self._claimed.setdefault(id, sha256)
            if claimed != sha256:
                raise ImageError(f"another file has the id {id!r}")
            if id in self._taken:
                return False
            self._taken.add(id)
            return True


def read(entry: Entry) -> tuple[Entry, bytes, str, str]:
    """The file's bytes with their sha256, its id, and the entry with the size and time of just then."""
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
    """Decodes in threads while the model runs. The model is loaded if there is anything to embed."""

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
