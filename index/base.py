"""The interface of an index. It is the same for an index in a folder and for one in Milvus."""

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

Vectors = NDArray[np.float32]  # (n, d), rows of unit length

Mode = Literal["read", "write", "share"]

ID_BYTES = 512  # the most bytes of an id in UTF-8, for both backends
ID_DIGITS = 32  # an item without an id gets so many digits of the file's sha256 as its id
METADATA_BYTES = 32_768
METADATA_DEPTH = 64  # Python's and SQLite's JSON cannot read back some hundreds of levels


@dataclass(frozen=True, slots=True)
class Item:
    """One image of the gallery. Files with the same bytes are one item with several paths."""

    id: str
    paths: tuple[str, ...] = ()  # bytes that are not UTF-8 are surrogates, as in os.fsdecode
    label: str | None = None
    sha256: str | None = None
    size: int | None = None  # of the file, in bytes
    metadata: Mapping[str, Any] = field(default_factory=dict)
    time: float = 0.0  # when it was added, in seconds since 1970
    stamps: tuple[int, ...] = ()  # st_mtime_ns of each path, to recognise unchanged files


@dataclass(frozen=True, slots=True)
class NewItem:
    """An item to add. It replaces an item with the same id.

    If ``id`` is None, the id is the beginning of ``sha256``, so the same file gives the same item.
    If ``vector`` is None, the vector of the item that is replaced is kept.
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
        """An item of an index as a new item, to copy it or to change it (dataclasses.replace)."""
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
        """The item that an index stores. An item that cannot be stored is an error."""
        id = self.id if self.id is not None else (self.sha256 or "")[:ID_DIGITS]
        check_text("id", id)
        if self.label is not None:
            check_text("label", self.label)
        if not id or len(id.encode()) > ID_BYTES:
            raise CouceError(
                f"an item's id must have from 1 to {ID_BYTES} bytes, but {id[:60]!r} has"
                f" {len(id.encode())}; give another id, or none and the sha256 of the file"
            )
        if len((self.label or "").encode()) > ID_BYTES:
            raise CouceError(
                f"the label of {id!r} has more than {ID_BYTES} bytes; give a shorter one"
            )
        metadata_json(self.metadata, id)
        stamps = self.stamps or (0,) * len(self.paths)
        if len(stamps) != len(self.paths):
            raise CouceError(
                f"{id!r} has {len(self.paths)} paths but {len(stamps)} stamps; give one stamp for"
                " each path, or none"
            )
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
    """An item that a search found."""

    id: str
    score: float  # the cosine of query and item
    item: Item


class Block(NamedTuple):
    """Some of the vectors of an index, with their ids and labels."""

    ids: list[str]
    labels: list[str | None]
    vectors: Vectors


class Index(Protocol):
    """The index of a gallery. A call sees all changes that were acknowledged before it."""

    dim: int | None  # None as long as the index is empty and accepts vectors of any length
    model_hash: str | None

    def add(self, items: Iterable[NewItem]) -> list[str]:
        """Stores the items and returns their ids, in order. Replaces items with the same id."""

    def remove(self, ids: Iterable[str]) -> int:
        """Removes items and returns how many of the ids the index had."""

    def get(self, id: str) -> Item | None:
        """The item with this id, or None."""

    def get_many(self, ids: Sequence[str]) -> list[Item | None]:
        """The item of each id, or None."""

    def items(self, offset: int = 0, limit: int = 100, filter: Filter | None = None) -> list[Item]:
        """A page of the items that match the filter, in the order of their ids."""

    def every_item(self) -> Iterator[Item]:
        """Yields all items in the order of their ids, with one block in memory at a time."""

    def search(
        self, vectors: ArrayLike, k: int = 10, filter: Filter | None = None, offset: int = 0
    ) -> list[list[Hit]]:
        """The nearest items of each row of ``vectors`` (n, d), nearest first.

        The first ``offset`` hits of a row are skipped, and at most ``k`` are returned.
        """

    def __len__(self) -> int: ...

    def labels(self) -> dict[str, int]:
        """The number of items of each label."""

    def vectors(self, ids: Sequence[str] | None = None) -> Iterator[Block]:
        """Yields all vectors, or those of ``ids``, in blocks. Unknown ids are left out."""

    def info(self) -> dict[str, Any]:
        """Facts about the index, such as its number of items and its model."""

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
        # A number that is too large becomes infinite, which the check below finds.
        with np.errstate(over="ignore"):
            rows = np.asarray(vectors, dtype=np.float32)
    except (TypeError, ValueError):
        raise CouceError("vectors must be rows of numbers, all of the same length") from None
    if rows.ndim != 2 or not rows.shape[1]:
        raise CouceError(
            f"vectors must have the shape (n, d), not {rows.shape}; give each vector as a row"
        )
    if dim is not None and rows.shape[1] != dim:
        raise CouceError(
            f"these vectors have {rows.shape[1]} dimensions and the index has {dim};"
            " use the model that built the index"
        )
    with np.errstate(over="ignore"):
        lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    if not np.all(np.isfinite(lengths)) or not np.all(lengths > 0):
        raise CouceError(
            "a vector is zero or not finite, so it cannot be compared with others; leave it out"
        )
    # Rows that already have unit length stay exactly as they are.
    close = np.abs(lengths - 1) <= 1e-6
    return np.ascontiguousarray(np.where(close, rows, rows / lengths), dtype=np.float32)


def stacked(vectors: Sequence[ArrayLike | None]) -> Vectors:
    """Stacks single vectors (d,) to an array (n, d)."""
    if len({np.shape(vector) for vector in vectors}) > 1:  # type: ignore[arg-type]
        raise CouceError(
            "these vectors have different lengths; embed all images with the same model"
        )
    return np.stack([np.asarray(vector, np.float32) for vector in vectors])


def metadata_json(metadata: Mapping[str, Any], id: str) -> str:
    """The metadata of an item as JSON. Metadata that is too large or too deep is an error."""
    try:
        text = json.dumps(dict(metadata), ensure_ascii=False, allow_nan=False, sort_keys=True)
        size = len(text.encode())
    except (TypeError, ValueError, RecursionError):
        raise CouceError(
            f"the metadata of {id!r} is not JSON; use texts, numbers, true, false, null, lists and"
            " objects"
        ) from None
    if size > METADATA_BYTES:
        raise CouceError(
            f"the metadata of {id!r} takes {size} bytes; at most {METADATA_BYTES} are allowed"
        )
    if _depth(metadata) > METADATA_DEPTH:
        raise CouceError(
            f"the metadata of {id!r} is more than {METADATA_DEPTH} lists or objects deep; use fewer"
            " levels"
        )
    return text


def _depth(value: object) -> int:
    """How deeply lists and objects are nested.

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
    """Refuses text that the backends cannot store."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise CouceError(
            f"the {what} {text!r} cannot be written as UTF-8; give another one"
        ) from None
    if "\0" in text:
        raise CouceError(f"the {what} {text!r} contains a NUL character; remove it")


def check_window(k: int, offset: int) -> None:
    if k < 1 or offset < 0:
        raise CouceError(f"k must be at least 1 and offset at least 0, not {k} and {offset}")


def check_model(
    address: str, known: str | None, dim: int | None, given: str | None, given_dim: int | None
) -> None:
    """Refuses a model other than that of the index, since their embeddings cannot be compared."""
    if known is not None and given is not None and known != given:
        raise CouceError(
            f"{address} was built with another model (sha256 {known[:12]}..., not {given[:12]}...);"
            " use that model, or build another index with this one"
        )
    if dim is not None and given_dim is not None and dim != given_dim:
        raise CouceError(
            f"{address} has vectors of {dim} dimensions, and these have {given_dim};"
            " use the model that built it, or build another index"
        )
