"""Reads and writes the rows of a catalog, in a transaction that the caller has opened."""

import json
import sqlite3
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from couce.errors import CouceError, StorageError
from couce.index.base import Item, Vectors, metadata_json
from couce.index.filters import Clauses, to_sql
from couce.index.paths import paths_json, paths_of

FORMAT = 1
BLOCK = 4096  # rows in memory at a time

Numbers = NDArray[np.int64]

_COLUMNS = "number, id, label, sha256, size, paths, metadata, time"


class State(NamedTuple):
    """The table ``state`` of a catalog."""

    identity: str  # names the catalog, so that a manifest can be matched with it
    dim: int | None
    model_hash: str | None
    revision: int
    main_revision: int  # of the FAISS file; `removed` has only later removals
    total: int  # number of items


def state(db: sqlite3.Connection) -> State:
    row = db.execute(
        "SELECT format, identity, dim, model_hash, revision, main_revision, count FROM state"
    ).fetchone()
    if row is None:
        raise sqlite3.DatabaseError("no such thing as its state")
    if row[0] > FORMAT:
        raise CouceError(
            f"this index has format {row[0]}, but this version of CouCE only reads format {FORMAT};"
            " use the version that wrote it"
        )
    return State(*row[1:])


def put(db: sqlite3.Connection, revision: int, rows: Sequence[tuple[Item, Any]]) -> None:
    """Adds or replaces items with their vectors (d,). For None, the stored vector is kept."""
    added = 0
    for item, vector in rows:
        found = db.execute("SELECT number, time FROM items WHERE id = ?", (item.id,)).fetchone()
        blob = None if vector is None else vector.tobytes()
        when = item.time
        if found is not None and (blob is None or _blob(db, found[0]) == blob):
            if blob is None:
                when = found[1]
            db.execute(
                "UPDATE items SET label = ?, sha256 = ?, size = ?, paths = ?, metadata = ?,"
                " time = ? WHERE number = ?",
                (*_columns(item), when, found[0]),
            )
            continue
        if blob is None:
            raise CouceError(
                f"the index has no item {item.id!r} whose vector could be kept; give a vector"
            )
        if found is not None:
            _drop(db, found[0], revision)
        else:
            added += 1
        number = db.execute(
            "INSERT INTO items (label, sha256, size, paths, metadata, time, id, revision)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (*_columns(item), when, item.id, revision),
        ).lastrowid
        db.execute("INSERT INTO vectors VALUES (?, ?, ?)", (number, zlib.crc32(blob), blob))
    db.execute("UPDATE state SET count = count + ?", (added,))


def drop(db: sqlite3.Connection, revision: int, ids: Iterable[str]) -> int:
    """Removes items and returns how many of the ids there were."""
    dropped = 0
    for id in ids:
        found = db.execute("SELECT number FROM items WHERE id = ?", (id,)).fetchone()
        if found is not None:
            _drop(db, found[0], revision)
            dropped += 1
    db.execute("UPDATE state SET count = count - ?", (dropped,))
    return dropped


def arrived(db: sqlite3.Connection, dim: int, after: int) -> Iterator[tuple[Numbers, Vectors]]:
    """Yields the rows that were added after a revision and still exist, by number, in blocks."""
    rows = db.execute(
        "SELECT number, vector FROM items JOIN vectors USING (number) WHERE revision > ?"
        " ORDER BY number",
        (after,),
    )
    yield from _blocks(rows, dim)


def everything(db: sqlite3.Connection, dim: int) -> Iterator[tuple[Numbers, Vectors]]:
    """Yields all vectors in the order of their numbers, in blocks, by one scan of the table."""
    yield from _blocks(db.execute("SELECT number, vector FROM vectors ORDER BY number"), dim)


def departed(db: sqlite3.Connection, after: int) -> Numbers:
    """The numbers of the rows that were removed after a revision."""
    return _numbers(
        db.execute("SELECT number FROM removed WHERE revision > ? ORDER BY number", (after,))
    )


def chosen(db: sqlite3.Connection, found: Clauses) -> Numbers:
    """The numbers of the items that match a filter."""
    condition, parameters = to_sql(found)
    return _numbers(
        db.execute(f"SELECT number FROM items WHERE {condition} ORDER BY number", parameters)  # noqa: S608
    )


def numbers_up_to(db: sqlite3.Connection, last: int) -> Numbers:
    """The numbers of all rows up to ``last``."""
    return _numbers(
        db.execute("SELECT number FROM items WHERE number <= ? ORDER BY number", (last,))
    )


def vectors_of(db: sqlite3.Connection, numbers: Numbers, dim: int) -> Vectors:
    """The vectors (n, d) of the given rows, in the same order. All of these rows must exist."""
    found: dict[int, bytes] = {}
    for part in _parts(np.unique(numbers)):
        marks = ", ".join("?" * len(part))
        found.update(
            db.execute(f"SELECT number, vector FROM vectors WHERE number IN ({marks})", part)  # noqa: S608
        )
    joined = b"".join(found[number] for number in numbers.tolist())
    return np.frombuffer(joined, np.float32).reshape(-1, dim)


def items_of(db: sqlite3.Connection, numbers: Iterable[int]) -> dict[int, Item]:
    return dict(_in_parts(db, "number", numbers))


def items_by_id(db: sqlite3.Connection, ids: Iterable[str]) -> dict[str, tuple[int, Item]]:
    """The items with these ids, each with its number."""
    return {item.id: (number, item) for number, item in _in_parts(db, "id", ids)}


def page(db: sqlite3.Connection, found: Clauses, offset: int, limit: int) -> list[Item]:
    """A page of the items that match a filter, in the order of their ids."""
    condition, parameters = to_sql(found)
    rows = db.execute(
        f"SELECT {_COLUMNS} FROM items WHERE {condition} ORDER BY id LIMIT ? OFFSET ?",  # noqa: S608
        (*parameters, limit, offset),
    )
    return [item for _, item in _items(rows.fetchall())]


def page_after(db: sqlite3.Connection, id: str, limit: int) -> list[Item]:
    """The items after an id, in the order of their ids."""
    rows = db.execute(
        f"SELECT {_COLUMNS} FROM items WHERE id > ? ORDER BY id LIMIT ?",  # noqa: S608
        (id, limit),
    )
    return [item for _, item in _items(rows.fetchall())]


def label_counts(db: sqlite3.Connection) -> dict[str, int]:
    return dict(
        db.execute(
            "SELECT label, count(*) FROM items WHERE label IS NOT NULL"
            " GROUP BY label ORDER BY label"
        )
    )


def _columns(item: Item) -> tuple[Any, ...]:
    paths = paths_json(item.paths, item.stamps)
    return item.label, item.sha256, item.size, paths, metadata_json(item.metadata, item.id)


def _in_parts(
    db: sqlite3.Connection, column: str, values: Iterable[Any]
) -> Iterator[tuple[int, Item]]:
    for part in _parts(values):
        marks = ", ".join("?" * len(part))
        rows = db.execute(f"SELECT {_COLUMNS} FROM items WHERE {column} IN ({marks})", part)  # noqa: S608
        yield from _items(rows.fetchall())


def _items(rows: list[tuple[Any, ...]]) -> Iterator[tuple[int, Item]]:
    """Yields the number and the item of each row."""
    # The paths of all rows are decoded at once, because decoding is most of the work.
    paths = json.loads(f"[{','.join([row[5] for row in rows])}]")
    for row, files in zip(rows, paths, strict=True):
        number, id, label, sha256, size, _, metadata, when = row
        names, stamps = paths_of(files)
        values = {} if metadata == "{}" else json.loads(metadata)
        yield number, Item(id, names, label, sha256, size, values, when, stamps)


def _blob(db: sqlite3.Connection, number: int) -> bytes | None:
    found = db.execute("SELECT vector FROM vectors WHERE number = ?", (number,)).fetchone()
    return found[0] if found else None


def _drop(db: sqlite3.Connection, number: int, revision: int) -> None:
    db.execute("DELETE FROM items WHERE number = ?", (number,))
    db.execute("DELETE FROM vectors WHERE number = ?", (number,))
    db.execute("INSERT INTO removed VALUES (?, ?)", (number, revision))


def _blocks(rows: sqlite3.Cursor, dim: int) -> Iterator[tuple[Numbers, Vectors]]:
    while block := rows.fetchmany(BLOCK):
        vectors = np.frombuffer(b"".join(row[1] for row in block), np.float32)
        if vectors.size != len(block) * dim:
            raise StorageError(
                "a vector in the catalog is damaged: its length is wrong; find it with"
                " `couce index verify`"
            )
        yield np.array([row[0] for row in block], np.int64), vectors.reshape(-1, dim)


def _numbers(rows: sqlite3.Cursor) -> Numbers:
    return np.fromiter((row[0] for row in rows), np.int64)


def _parts(values: Iterable[Any]) -> Iterator[list[Any]]:
    """Splits the values into lists that are short enough for the parameters of a statement."""
    left = values.tolist() if isinstance(values, np.ndarray) else list(values)
    for start in range(0, len(left), 500):
        yield left[start : start + 500]
