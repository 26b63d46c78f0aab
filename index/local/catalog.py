"""The catalog of an index in a folder: a SQLite file with every item and its vector.

FAISS knows a vector by the ``number`` of its row. A number is never used twice: a new vector for
the same item is a new row. Every transaction raises the ``revision``. A row holds the revision in
which it was added. When it is removed, the table ``removed`` holds its number and the revision of
the removal, as long as the FAISS file has the row. So a reader that has seen revision R finds in
these two tables all changes since then.
"""

import os
import sqlite3
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from couce.errors import CouceError, StorageError
from couce.files import sync_folder
from couce.index.local.rows import state

NAME = "catalog.db"

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
CREATE TABLE vectors (
    number INTEGER PRIMARY KEY, crc INTEGER NOT NULL, vector BLOB NOT NULL
) STRICT;
CREATE TABLE removed (number INTEGER PRIMARY KEY, revision INTEGER NOT NULL) STRICT;
"""


class Catalog:
    """The connections to the catalog: one for each thread that reads, and one for writing."""

    def __init__(self, folder: Path, write: bool) -> None:
        self.path = folder / NAME
        self._write = write
        self._local = threading.local()
        self._opened: list[sqlite3.Connection] = []
        self._writing = threading.Lock()
        self._writer: sqlite3.Connection | None = None
        self._place = (0, 0)  # the writer's device and inode
        if write:
            with self._speaking():
                self._writer = self._connect_writer()
        elif not self.path.exists():
            raise CouceError(f"there is no index in {folder}; create one with `couce index build`")
        with self.reading() as db:
            state(db)

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """A read transaction. All reads inside see the same revision."""
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
        """A write transaction and its revision.

        At the end all changes are on the disk. After an error there are none.
        """
        if self._writer is None:
            raise CouceError(
                f"{self.path.parent} is open for reading only; open it with mode='write'"
            )
        with self._writing, self._speaking():
            db = self._writer
            db.execute("BEGIN IMMEDIATE")
            try:
                db.execute("UPDATE state SET revision = revision + 1")
                (revision,) = db.execute("SELECT revision FROM state").fetchone()
                yield db, revision
                self._check_place()
                db.execute("COMMIT")
            except BaseException:
                # SQLite may already have rolled back by itself.
                with suppress(sqlite3.Error):
                    db.execute("ROLLBACK")
                raise

    def _check_place(self) -> None:
        """Raises an error if the file was replaced or deleted, since the change would be lost."""
        try:
            there = self.path.stat()
        except OSError:
            there = None
        if there is None or (there.st_dev, there.st_ino) != self._place:
            raise StorageError(
                f"{self.path} was replaced or deleted while it was open, so the change was not"
                " made; open the index again"
            )

    def close(self) -> None:
        for db in [*self._opened, self._writer]:
            if db is not None:
                with suppress(sqlite3.Error):
                    db.close()
        self._opened, self._writer = [], None

    def faults(self) -> list[str]:
        """All faults of the catalog, found by reading it completely."""
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
                    found.append(f"{self.path}: the item {id!r} has no vector")
                elif zlib.crc32(vector) != crc or len(vector) != 4 * (dim or 0):
                    found.append(f"{self.path}: the vector of {id!r} is damaged")
            (rows,) = db.execute("SELECT count(*) FROM items").fetchone()
            if rows != state(db).total:
                found.append(f"{self.path}: it has {rows} items instead of {state(db).total}")
        return found

    def _connect_writer(self) -> sqlite3.Connection:
        new = not self.path.exists() or not self.path.stat().st_size
        if new and any(self.path.parent.glob("vectors-*.faiss")):
            raise CouceError(
                f"{self.path} is missing or empty, although there was an index; restore it from a"
                " backup, or delete the folder and build the index again"
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
        found = self.path.stat()
        self._place = (found.st_dev, found.st_ino)
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
            # In a read-only folder, SQLite cannot create the files with which readers and writers
            # coordinate. If no changes wait in a log, it can read the file without them.
            immutable = signature is not None and not signature[1]
            uri = f"{self.path.absolute().as_uri()}?mode=ro{'&immutable=1' if immutable else ''}"
            found = sqlite3.connect(
                uri, uri=True, isolation_level=None, check_same_thread=False, timeout=60
            )
            found.execute("PRAGMA query_only = ON")
            self._local.db, self._local.signature = found, signature
            self._opened.append(found)
        return found

    def _signature(self) -> tuple[tuple[int, int, int], bool]:
        """Values that every change of the file changes, and whether changes wait in its log."""
        found = self.path.stat()
        log = self.path.with_name(f"{NAME}-wal")
        waiting = log.exists() and log.stat().st_size > 0
        return (found.st_ino, found.st_size, found.st_mtime_ns), waiting

    @contextmanager
    def _speaking(self) -> Iterator[None]:
        """Turns the errors of SQLite into a StorageError of one sentence."""
        try:
            yield
        except sqlite3.Error as error:
            raise self._sentence(error) from error

    def _sentence(self, error: sqlite3.Error) -> StorageError:
        code = getattr(error, "sqlite_errorcode", None)
        primary = code & 0xFF if code is not None else None
        where = self.path
        if primary == sqlite3.SQLITE_FULL:
            return StorageError(
                f"the disk of {where} is full; the change was not made, but all earlier changes are"
                " kept; free some space"
            )
        if primary in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            return StorageError(
                f"{where} is damaged ({error}); restore it from a backup, or delete the folder and"
                " build the index again"
            )
        if primary in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM):
            return StorageError(
                f"{where} cannot be opened or written to ({error}); check its permissions"
            )
        if primary == sqlite3.SQLITE_IOERR:
            return StorageError(
                f"{where} could not be read or written ({error}), so the change was not made;"
                " check the disk"
            )
        if primary == sqlite3.SQLITE_ERROR and "no such" in str(error):
            return StorageError(
                f"{where} is not the catalog of an index ({error}); give another folder"
            )
        return StorageError(f"{where} cannot be used: {error}")
