"""What a gallery is to its callers: the same calls whether it lies in a folder or in Milvus."""

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from types import TracebackType
from typing import Any, Literal, NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from couce.errors import CouceError
from couce.index.filters import Filter

Vectors = NDArray[np.float32]  # (n, d), unit rows

Mode = Literal["read", "write", "share"]

ID_BYTES = 512  # what an id may take in UTF-8, in both backends
ID_DIGITS = 32  # of a file's sha256, for an item without an id of its own
METADATA_BYTES = 32_768
METADATA_DEPTH = 64  # beyond some hundreds, neither Python's JSON nor SQLite's reads it back


@dataclass(frozen=True, slots=True)
class Item:
    """One picture of the gallery. Files with the same bytes are one item with several paths."""

    id: str
    paths: tuple[str, ...] = ()  # undecodable bytes as surrogates, as os.fsdecode gives them
    label: str | None = None
    sha256: str | None = None
    size: int | None = None  # of the file, in bytes
    metadata: Mapping[str, Any] = field(default_factory=dict)
    time: float = 0.0  # when it was added, seconds since 1970
    stamps: tuple[int, ...] = ()  # st_mtime_ns of each path, by which a build knows it again


@dataclass(frozen=True, slots=True)
class NewItem:
    """What is to be added. An item of the same id is replaced.

    Without an ``id`` it is the beginning of ``sha256``, so that the same file is the same item. Without
    a ``vector`` that of the item to be replaced is kept.
    """

    vector: ArrayLike | None
    id: str | None = None
    label: str | None = None
    sha256: str | None = None
    size: int | None = None
    paths: tuple[str, ...] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)
    stamps: tuple[int, ...] = ()

    @classmethod
    def of(cls, item: Item, vector: ArrayLike | None = None) -> Self:
        """The same item again, to be copied or changed with dataclasses.replace."""
        return cls(
            vector=vector,
            id=item.id,
            label=item.label,
            sha256=item.sha256,
            size=item.size,
            paths=item.paths,
            metadata=item.metadata,
            stamps=item.stamps,
        )

    def item(self) -> Item:
        """As it will be kept; what cannot be kept is an error."""
        id = self.id if self.id is not None else (self.sha256 or "")[:ID_DIGITS]
        check_text("id", id)
        if self.label is not None:
            check_text("label", self.label)
        if not id or len(id.encode()) > ID_BYTES:
            raise CouceError(
                f"an item's id has from 1 to {ID_BYTES} bytes, and {id[:60]!r} has {len(id.encode())};"
                " give one, or the sha256 that it can be made of"
            )
        if len((self.label or "").encode()) > ID_BYTES:
            raise CouceError(f"the label of {id!r} has more than {ID_BYTES} bytes")
        metadata_json(self.metadata, id)
        stamps = self.stamps or (0,) * len(self.paths)
        if len(stamps) != len(self.paths):
            raise CouceError(f"{id!r} has {len(self.paths)} paths but {len(stamps)} stamps")
        return Item(
            id=id,
            paths=self.paths,
            label=self.label or None,
            sha256=self.sha256,
            size=self.size,
            metadata=dict(self.metadata),
            time=time.time(),
            stamps=stamps,
        )


class Hit(NamedTuple):
    id: str
    score: float  # cosine
    item: Item


class Block(NamedTuple):
    """A stretch of the gallery's vectors."""

    ids: list[str]
    labels: list[str | None]
    vectors: Vectors


class Index(Protocol):
    """A gallery. Every call sees all that was acknowledged before it."""

    dim: int | None  # None: empty, and any length will do
    model_hash: str | None

    def add(self, items: Iterable[NewItem]) -> list[str]:
        """Their ids, in order, once all of them are kept. An item of the same id is replaced."""

    def remove(self, ids: Iterable[str]) -> int:
        """How many of them were there."""

    def get(self, id: str) -> Item | None: ...

    def get_many(self, ids: Sequence[str]) -> list[Item | None]: ...

    def items(self, offset: int = 0, limit: int = 100, filter: Filter | None = None) -> list[Item]:
        """In the order of their ids."""

    def every_item(self) -> Iterator[Item]:
        """All of them, in the order of their ids, a block in memory at a time."""

    def search(
        self, vectors: ArrayLike, k: int = 10, filter: Filter | None = None, offset: int = 0
    ) -> list[list[Hit]]:
        """For each row of ``vectors`` (n, d) its nearest, from the ``offset``-th, ``k`` at most."""

    def __len__(self) -> int: ...

    def labels(self) -> dict[str, int]:
        """Each label with its number of items."""

    def vectors(self, ids: Sequence[str] | None = None) -> Iterator[Block]:
        """All vectors, or those of ``ids`` that are there, block by block."""

    def info(self) -> dict[str, Any]: ...

    def close(self) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None: ...


def unit_rows(vectors: ArrayLike, dim: int | None = None) -> Vectors:
    """The rows (n, d) scaled to length 1, as float32.

    >>> unit_rows([[3.0, 4.0]])
    array([[0.6, 0.8]], dtype=float32)
    """
    try:
        with np.errstate(over="ignore"):  # what is too large is not finite, and told below
            rows = np.asarray(vectors, dtype=np.float32)
    except (TypeError, ValueError):
        raise CouceError("vectors are numbers, one row each and all of the same length") from None
    if rows.ndim != 2 or not rows.shape[1]:
        raise CouceError(f"vectors are (n, d), one row each, not of shape {rows.shape}")
    if dim is not None and rows.shape[1] != dim:
        raise CouceError(
            f"these vectors have {rows.shape[1]} dimensions and the index has {dim};"
            " embed with the model that the index was built with"
        )
    with np.errstate(over="ignore"):
        lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    if not np.all(np.isfinite(lengths)) or not np.all(lengths > 0):
        raise CouceError("a vector is zero or not finite, and has no direction to search in")
    # Rows that are of unit length already stay as they are, to the last bit.
    close = np.abs(lengths - 1) <= 1e-6
    return np.ascontiguousarray(np.where(close, rows, rows / lengths), dtype=np.float32)


def stacked(vectors: Sequence[ArrayLike | None]) -> Vectors:
    """Single vectors (d,) as rows."""
    if len({np.shape(vector) for vector in vectors}) > 1:  # type: ignore[arg-type]
        raise CouceError("these vectors have different lengths; they must be of one model")
    return np.stack([np.asarray(vector, np.float32) for vector in vectors])


def metadata_json(metadata: Mapping[str, Any], id: str) -> str:
    try:
        text = json.dumps(dict(metadata), ensure_ascii=False, allow_nan=False, sort_keys=True)
        size = len(text.encode())
    except (TypeError, ValueError, RecursionError):
        raise CouceError(f"the metadata of {id!r} is not JSON: keys and texts, numbers") from None
    if size > METADATA_BYTES:
        raise CouceError(f"the metadata of {id!r} takes {size} bytes, of {METADATA_BYTES} allowed")
    if _depth(metadata) > METADATA_DEPTH:
        raise CouceError(
            f"the metadata of {id!r} is more than {METADATA_DEPTH} lists or objects deep"
        )
    return text


def _depth(value: object) -> int:
    """How many lists and objects stand in each other.

    >>> _depth({"a": [1, [2]]})
    3
    """
    level: list[object] = [value]
    for depth in count():
        inner = [each for each in level if isinstance(each, Mapping | list | tuple)]
        if not inner or depth > METADATA_DEPTH:
            return depth
        level = [
            each for box in inner for each in (box.values() if isinstance(box, Mapping) else box)
        ]
    raise AssertionError


def check_text(what: str, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise CouceError(f"the {what} {text!r} is not text that can be written as UTF-8") from None
    if "\0" in text:
        raise CouceError(f"the {what} {text!r} contains a NUL character")


def check_window(k: int, offset: int) -> None:
    if k < 1 or offset < 0:
        raise CouceError(f"k is at least 1 and offset at least 0, not {k} and {offset}")


def check_model(
    address: str, known: str | None, dim: int | None, given: str | None, given_dim: int | None
) -> None:
    """Refuses a model that the index was not built with: its embeddings mean something else."""
    if known is not None and given is not None and known != given:
        raise CouceError(
            f"{address} was built with another model (sha256 {known[:12]}..., not {given[:12]}...);"
            " use that one, or build another index with this"
        )
    if dim is not None and given_dim is not None and dim != given_dim:
        raise CouceError(
            f"{address} has vectors of {dim} dimensions, and these have {given_dim};"
            " use the model that it was built with, or build another index"
        )
