"""The truth of an index in a folder: a SQLite file with every item and its vector.

A vector is known to FAISS by its row's ``number``, which is never used twice: another vector for the same
item is another row. Every transaction raises the ``revision``. A row keeps the revision in which it came,
and leaves its number in ``removed`` with that in which it went, until no FAISS file holds it any more. So
whoever knows revision R learns what happened since from these two alone.
"""

import base64
import json
import os
import sqlite3
import threading
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from couce.errors import CouceError
from couce.index.base import Item, Vectors, metadata_json
from couce.index.durable import sync_folder
from couce.index.filters import Clauses, to_sql

NAME = "catalog.db"
FORMAT = 1
BLOCK = 4096  # rows in memory at a time

Numbers = NDArray[np.int64]

_SCHEMA = """
CREATE TABLE state (
    format INTEGER NOT NULL, identity TEXT NOT NULL, dim INTEGER, model_hash TEXT,
    revision INTEGER NOT NULL, main_revision INTEGER NOT NULL, count INTEGER NOT NULL
) STRICT;
INSERT INTO state VALUES (1, lower(hex(randomblob(16))), NULL, NULL, 0, 0, 0);
CREATE TABLE items (
    number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, label TEXT, sha256 TEXT,
    size INTEGER, paths TEXT NOT NULL, metadata TEXT NOT NULL, time REAL NOT NULL,
    revision INTEGER NOT NULL
) STRICT;
CREATE INDEX items_revision ON items (revision);
CREATE INDEX items_label ON items (label);
CREATE TABLE vectors (number INTEGER PRIMARY KEY, crc INTEGER NOT NULL, vector BLOB NOT NULL) STRICT;
CREATE TABLE removed (number INTEGER PRIMARY KEY, revision INTEGER NOT NULL) STRICT;
"""
_COLUMNS = "number, id, label, sha256, size, paths, metadata, time"


class State(NamedTuple):
    identity: str  # by which a manifest knows its catalog
    dim: int | None
    model_hash: str | None
    revision: int
    main_revision: int  # what the FAISS file holds; `removed` says nothing of before
    total: int  # of items


class Catalog:
    """Connections to the file: one for each thread that reads, one for whoever writes."""

    def __init__(self, folder: Path, write: bool) -> None:
        self.path = folder / NAME
        self._write = write
        self._local = threading.local()
        self._opened: list[sqlite3.Connection] = []
        self._writing = threading.Lock()
        self._writer: sqlite3.Connection | None = None
        if write:
            with self._speaking():
                self._writer = self._connect_writer()
        elif not self.path.exists():
            raise CouceError(f"there is no index in {folder}; `couce index build` makes one")
        with self.reading() as db:
            state(db)

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """All that is read inside is of one moment, whatever is written meanwhile."""
        with self._speaking():
            db = self._reader()
            db.execute("BEGIN")
            try:
                yield db
            finally:
                with suppress(sqlite3.Error):
                    db.execute("ROLLBACK")

    @contextmanager
    def writing(self) -> Iterator[tuple[sqlite3.Connection, int]]:
        """A transaction and its revision: on the disk once this is left, or as if it had never been."""
        if self._writer is None:
            raise CouceError(f"{self.path.parent} is open for reading; open it with mode='write'")
        with self._writing, self._speaking():
            db = self._writer
            db.execute("BEGIN IMMEDIATE")
            try:
                db.execute("UPDATE state SET revision = revision + 1")
                (revision,) = db.execute("SELECT revision FROM state").fetchone()
                yield db, revision
                db.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):  # SQLite may have rolled back by itself
                    db.execute("ROLLBACK")
                raise

    def close(self) -> None:
        for db in [*self._opened, self._writer]:
            if db is not None:
                with suppress(sqlite3.Error):
                    db.close()
        self._opened, self._writer = [], None

    def faults(self) -> list[str]:
        """What is wrong with the file, read from beginning to end."""
        found = []
        with self.reading() as db:
            for (line,) in db.execute("PRAGMA integrity_check"):
                if line != "ok":
                    found.append(f"{self.path}: {line}")
            dim = state(db).dim
            for id, crc, vector in db.execute(
                "SELECT id, crc, vector FROM items LEFT JOIN vectors USING (number)"
            ):
                if vector is None:
                    found.append(f"{self.path}: {id!r} has no vector")
                elif zlib.crc32(vector) != crc or len(vector) != 4 * (dim or 0):
                    found.append(f"{self.path}: the vector of {id!r} is damaged")
            (rows,) = db.execute("SELECT count(*) FROM items").fetchone()
            if rows != state(db).total:
                found.append(f"{self.path}: {rows} items where {state(db).total} were counted")
        return found

    def _connect_writer(self) -> sqlite3.Connection:
        new = not self.path.exists() or not self.path.stat().st_size
        if new and any(self.path.parent.glob("vectors-*.faiss")):
            raise CouceError(
                f"{self.path} is missing or empty, though there was an index; put it back from a copy,"
                " or delete the folder and build anew"
            )
        db = sqlite3.connect(
            self.path,
            isolation_level=None,
            check_same_thread=False,
            timeout=60,
            cached_statements=256,
        )
        if new:
            db.execute("PRAGMA page_size = 16384")  # room for several vectors of 2 KB
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")
        db.execute("BEGIN IMMEDIATE")
        if not db.execute("SELECT 1 FROM sqlite_master").fetchone():
            for statement in _SCHEMA.split(";\n"):
                db.execute(statement)
        db.execute("COMMIT")
        sync_folder(self.path.parent)
        return db

    def _reader(self) -> sqlite3.Connection:
        found: sqlite3.Connection | None = getattr(self._local, "db", None)
        signature = None
        if not self._write and not os.access(self.path.parent, os.W_OK):
            signature = self._signature()
            if found is not None and signature != self._local.signature:
                found.close()
                found = None
        if found is None:
            # In a folder that we may not write to, SQLite cannot make the files by which readers and
            # a writer know of each other. If there is no writer, nothing changes and none are needed.
            still = signature is not None and not signature[1]
            uri = f"{self.path.absolute().as_uri()}?mode=ro{'&immutable=1' if still else ''}"
            found = sqlite3.connect(
                uri, uri=True, isolation_level=None, check_same_thread=False, timeout=60
            )
            found.execute("PRAGMA query_only = ON")
            self._local.db, self._local.signature = found, signature
            self._opened.append(found)
        return found

    def _signature(self) -> tuple[tuple[int, int, int], bool]:
        """What changes when the file does, and whether changes wait in a log beside it."""
        found = self.path.stat()
        log = self.path.with_name(f"{NAME}-wal")
        waiting = log.exists() and log.stat().st_size > 0
        return (found.st_ino, found.st_size, found.st_mtime_ns), waiting

    @contextmanager
    def _speaking(self) -> Iterator[None]:
        """SQLite's errors as sentences."""
        try:
            yield
        except sqlite3.Error as error:
            raise self._sentence(error) from error

    def _sentence(self, error: sqlite3.Error) -> CouceError:
        code = getattr(error, "sqlite_errorcode", None)
        primary = code & 0xFF if code is not None else None
        where = self.path
        if primary == sqlite3.SQLITE_FULL:
            return CouceError(
                f"the disk of {where} is full; the change was not made, and all earlier ones are kept"
            )
        if primary in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            return CouceError(
                f"{where} is damaged ({error}); put it back from a copy, or delete the folder and"
                " build anew"
            )
        if primary in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM):
            return CouceError(f"{where} cannot be opened or written to: {error}")
        if primary == sqlite3.SQLITE_IOERR:
            return CouceError(
                f"{where} could not be read or written ({error}); the change was not made"
            )
        if primary == sqlite3.SQLITE_ERROR and "no such" in str(error):
            return CouceError(f"{where} is not the catalog of an index: {error}")
        return CouceError(f"{where}: {error}")


def state(db: sqlite3.Connection) -> State:
    row = db.execute(
        "SELECT format, identity, dim, model_hash, revision, main_revision, count FROM state"
    ).fetchone()
    if row is None:
        raise sqlite3.DatabaseError("no such thing as its state")
    if row[0] > FORMAT:
        raise CouceError(
            f"this index has format {row[0]}, and this version of CouCE reads {FORMAT};"
            " use the version that wrote it"
        )
    return State(*row[1:])


def put(db: sqlite3.Connection, revision: int, rows: Sequence[tuple[Item, Any]]) -> None:
    """Adds items with their vectors (d,) or replaces them; None keeps the vector that is there."""
    added = 0
    for item, vector in rows:
        found = db.execute("SELECT number, time FROM items WHERE id = ?", (item.id,)).fetchone()
        blob = None if vector is None else vector.tobytes()
        when = item.time
        if found is not None and (blob is None or _blob(db, found[0]) == blob):
            if blob is None:
                when = found[1]
            db.execute(
                "UPDATE items SET label = ?, sha256 = ?, size = ?, paths = ?, metadata = ?, time = ?"
                " WHERE number = ?",
                (*_columns(item), when, found[0]),
            )
            continue
        if blob is None:
            raise CouceError(f"there is no {item.id!r} whose vector could be kept; give one")
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
    dropped = 0
    for id in ids:
        found = db.execute("SELECT number FROM items WHERE id = ?", (id,)).fetchone()
        if found is not None:
            _drop(db, found[0], revision)
            dropped += 1
    db.execute("UPDATE state SET count = count - ?", (dropped,))
    return dropped


def arrived(db: sqlite3.Connection, dim: int, after: int) -> Iterator[tuple[Numbers, Vectors]]:
    """The rows that came after a revision and are still there, by number, block by block."""
    rows = db.execute(
        "SELECT number, vector FROM items JOIN vectors USING (number) WHERE revision > ?"
        " ORDER BY number",
        (after,),
    )
    yield from _blocks(rows, dim)


def everything(db: sqlite3.Connection, dim: int) -> Iterator[tuple[Numbers, Vectors]]:
    """All vectors in the order of their numbers: the table from beginning to end, without looking up."""
    yield from _blocks(db.execute("SELECT number, vector FROM vectors ORDER BY number"), dim)


def departed(db: sqlite3.Connection, after: int) -> Numbers:
    """The numbers of the rows that went after a revision."""
    return _numbers(
        db.execute("SELECT number FROM removed WHERE revision > ? ORDER BY number", (after,))
    )


def chosen(db: sqlite3.Connection, found: Clauses) -> Numbers:
    """The numbers of the items that a filter lets through."""
    condition, parameters = to_sql(found)
    return _numbers(
        db.execute(f"SELECT number FROM items WHERE {condition} ORDER BY number", parameters)  # noqa: S608
    )


def numbers_up_to(db: sqlite3.Connection, last: int) -> Numbers:
    """The numbers of all rows up to one."""
    return _numbers(
        db.execute("SELECT number FROM items WHERE number <= ? ORDER BY number", (last,))
    )


def vectors_of(db: sqlite3.Connection, numbers: Numbers, dim: int) -> Vectors:
    """The vectors (n, d) of rows that are there, in the order asked for."""
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
    """With their numbers."""
    return {item.id: (number, item) for number, item in _in_parts(db, "id", ids)}


def page(db: sqlite3.Connection, found: Clauses, offset: int, limit: int) -> list[Item]:
    """Items in the order of their ids."""
    condition, parameters = to_sql(found)
    rows = db.execute(
        f"SELECT {_COLUMNS} FROM items WHERE {condition} ORDER BY id LIMIT ? OFFSET ?",  # noqa: S608
        (*parameters, limit, offset),
    )
    return [item for _, item in _items(rows.fetchall())]


def page_after(db: sqlite3.Connection, id: str, limit: int) -> list[Item]:
    rows = db.execute(
        f"SELECT {_COLUMNS} FROM items WHERE id > ? ORDER BY id LIMIT ?",  # noqa: S608
        (id, limit),
    )
    return [item for _, item in _items(rows.fetchall())]


def label_counts(db: sqlite3.Connection) -> dict[str, int]:
    return dict(
        db.execute(
            "SELECT label, count(*) FROM items WHERE label IS NOT NULL GROUP BY label ORDER BY label"
        )
    )


def paths_json(paths: Sequence[str], stamps: Sequence[int]) -> str:
    """Paths with their stamps. A path that is no UTF-8 goes in as its bytes.

    >>> paths_json(["a.jpg", os.fsdecode(b"\\xff.jpg")], [1, 2])
    '[["a.jpg", 1], [{"bytes": "/y5qcGc="}, 2]]'
    """
    rows: list[tuple[str | dict[str, str], int]] = []
    for path, stamp in zip(paths, stamps, strict=True):
        try:
            path.encode()
            rows.append((path, stamp))
        except UnicodeEncodeError:
            rows.append(({"bytes": base64.b64encode(os.fsencode(path)).decode()}, stamp))
    return json.dumps(rows, ensure_ascii=False)


def paths_from_json(text: str) -> tuple[tuple[str, ...], tuple[int, ...]]:
    return _paths(json.loads(text))


def _paths(rows: list[Any]) -> tuple[tuple[str, ...], tuple[int, ...]]:
    paths = tuple(
        path if isinstance(path, str) else os.fsdecode(base64.b64decode(path["bytes"]))
        for path, _ in rows
    )
    return paths, tuple([stamp for _, stamp in rows])


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
    """With their numbers. The paths of all are decoded at once, since that is most of the work."""
    paths = json.loads(f"[{','.join([row[5] for row in rows])}]")
    for row, files in zip(rows, paths, strict=True):
        number, id, label, sha256, size, _, metadata, when = row
        names, stamps = _paths(files)
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
            raise CouceError(
                "a vector in the catalog is damaged: it has another length;"
                " `couce index verify` names it"
            )
        yield np.array([row[0] for row in block], np.int64), vectors.reshape(-1, dim)


def _numbers(rows: sqlite3.Cursor) -> Numbers:
    return np.fromiter((row[0] for row in rows), np.int64)


def _parts(values: Iterable[Any]) -> Iterator[list[Any]]:
    """In lists short enough for a statement."""
    left = values.tolist() if isinstance(values, np.ndarray) else list(values)
    for start in range(0, len(left), 500):
        yield left[start : start + 500]
