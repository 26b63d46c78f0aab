"""An index in a folder: catalog, FAISS file and manifest, for one writer and many readers.

A search reads the catalog in one transaction, and uses the vectors in memory for its revision.
"""

import logging
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from sqlite3 import Connection
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from couce.errors import CouceError
from couce.index.base import (
    Block,
    Hit,
    Item,
    Mode,
    NewItem,
    check_model,
    check_window,
    stacked,
    unit_rows,
)
from couce.index.filters import Filter, clauses
from couce.index.local import rows
from couce.index.local.catalog import NAME as CATALOG
from couce.index.local.catalog import Catalog
from couce.index.local.compaction import compact, due, settle, sweep
from couce.index.local.lock import WriterLock
from couce.index.local.manifest import Manifest, NewerFormatError, Structure
from couce.index.local.memory import ATTEMPTS, Memory, Moment, file_fault

log = logging.getLogger(__name__)


class LocalIndex:
    """An index in a folder. The mode ``write`` creates it if there is none.

    With the mode ``share``, several processes write to the index. Each change is a transaction of
    the catalog, and SQLite runs them one after another. The process that finds that a compaction is
    due takes the writer's lock for it.
    """

    def __init__(
        self,
        folder: Path,
        mode: Mode = "read",
        model_hash: str | None = None,
        dim: int | None = None,
        background: bool = True,
    ) -> None:
        self.folder, self._background = folder, background
        self.dim: int | None = None
        self.model_hash: str | None = None
        self._writes = mode != "read"
        self._lock: WriterLock | None = None
        self._compacting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._fault: BaseException | None = None
        self._memory = Memory(folder)
        if mode == "write":
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = WriterLock(folder / "writer.lock")
        elif not (folder / CATALOG).exists() or not (folder / CATALOG).stat().st_size:
            raise CouceError(f"there is no index in {folder}; create one with `couce index build`")
        try:
            self._catalog = Catalog(folder, self._writes)
            self._adopt(model_hash, dim)
            if mode == "write":
                self._mend()
            # This reports faults now and not in the first search.
            with self._now():
                pass
        except BaseException:
            self.close()
            raise

    # The methods of Index.

    def add(self, items: Iterable[NewItem]) -> list[str]:
        """Stores all items in one transaction, so after an error none is stored."""
        new = list(items)
        kept = [each.item() for each in new]
        given = [place for place, each in enumerate(new) if each.vector is not None]
        kept_vectors: list[Any] = [None] * len(new)
        dim = self.dim
        if given:
            vectors = unit_rows(stacked([new[place].vector for place in given]), dim)
            dim = vectors.shape[1]
            for place, vector in zip(given, vectors, strict=True):
                kept_vectors[place] = vector
        with self._catalog.writing() as (db, revision):
            found = rows.state(db)
            # Another thread or process may have set the dimension in the meantime.
            check_model(str(self.folder), None, found.dim, None, dim)
            if found.dim is None:
                db.execute("UPDATE state SET dim = ?", (dim,))
            rows.put(db, revision, list(zip(kept, kept_vectors, strict=True)))
        self.dim = dim
        self._compact_if_due()
        return [item.id for item in kept]

    def remove(self, ids: Iterable[str]) -> int:
        with self._catalog.writing() as (db, revision):
            dropped = rows.drop(db, revision, list(ids))
        self._compact_if_due()
        return dropped

    def get(self, id: str) -> Item | None:
        return self.get_many([id])[0]

    def get_many(self, ids: Sequence[str]) -> list[Item | None]:
        with self._catalog.reading() as db:
            found = rows.items_by_id(db, ids)
        return [found[id][1] if id in found else None for id in ids]

    def items(self, offset: int = 0, limit: int = 100, filter: Filter | None = None) -> list[Item]:
        check_window(max(1, limit), offset)
        with self._catalog.reading() as db:
            return rows.page(db, clauses(filter), offset, max(0, limit))

    def every_item(self) -> Iterator[Item]:
        last = ""
        while True:
            with self._catalog.reading() as db:
                block = rows.page_after(db, last, rows.BLOCK)
            if not block:
                return
            yield from block
            last = block[-1].id

    def search(
        self, vectors: ArrayLike, k: int = 10, filter: Filter | None = None, offset: int = 0
    ) -> list[list[Hit]]:
        check_window(k, offset)
        found_clauses = clauses(filter)
        queries = unit_rows(vectors, self.dim)
        with self._now() as (db, moment):
            found = self._memory.nearest(db, moment, queries, k + offset, found_clauses)
            numbers = found.numbers[:, offset:].tolist()
            items = rows.items_of(db, {n for row in numbers for n in row if n >= 0})
        scores = found.scores[:, offset:].tolist()
        return [
            [
                Hit((item := items[number]).id, score, item)
                for score, number in zip(*row, strict=True)
                if number >= 0
            ]
            for row in zip(scores, numbers, strict=True)
        ]

    def __len__(self) -> int:
        with self._catalog.reading() as db:
            return rows.state(db).total

    def labels(self) -> dict[str, int]:
        with self._catalog.reading() as db:
            return rows.label_counts(db)

    def vectors(self, ids: Sequence[str] | None = None) -> Iterator[Block]:
        last, start = "", 0
        while True:
            with self._catalog.reading() as db:
                if ids is None:
                    part = [item.id for item in rows.page_after(db, last, rows.BLOCK)]
                else:
                    part = list(ids[start : start + rows.BLOCK])
                if not part:
                    return
                last, start = part[-1], start + rows.BLOCK
                found = rows.items_by_id(db, part)
                there = [id for id in part if id in found]
                numbers = np.array([found[id][0] for id in there], np.int64)
                vectors = rows.vectors_of(db, numbers, rows.state(db).dim or 0)
            if there:
                yield Block(there, [found[id][1].label for id in there], vectors)

    def info(self) -> dict[str, Any]:
        with self._now() as (db, moment):
            found = rows.state(db)
            labels = len(rows.label_counts(db))
        main = moment.main
        measured = main.structure.measured if main is not None else None
        return {
            "backend": "folder",
            "address": str(self.folder),
            "items": found.total,
            "labels": labels,
            "dim": found.dim,
            "model": found.model_hash,
            "revision": found.revision,
            "type": main.structure.asked if main is not None else "exact",
            "structure": main.structure.factory if main is not None else None,
            "indexed": main.count if main is not None else 0,
            "recent": moment.recent.size,
            "removed": len(moment.removed),
            "measured": measured.model_dump() if measured is not None else None,
            "bytes": sum(map(_size, self.folder.iterdir())),
        }

    def close(self) -> None:
        if self._thread is not None:
            self._thread.join()
        if hasattr(self, "_catalog"):
            self._catalog.close()
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self.close()

    # Methods that only an index in a folder has.

    def structure(self) -> Structure:
        """The present search structure, or the default if there is none."""
        with suppress(CouceError):
            return Manifest.read(self.folder).structure
        return Structure()

    def compact(self, structure: Structure | None = None, fresh: bool = True) -> Manifest:
        """Writes a new FAISS file with all vectors, in the given structure or in the present one.

        Without ``fresh``, the trained inverted lists are kept as long as they fit.
        """
        if self._lock is None:
            raise CouceError(f"{self.folder} is not open for writing; open it with mode='write'")
        with self._compacting:
            return compact(self.folder, self._catalog, structure or self.structure(), fresh)

    def faults(self) -> list[str]:
        """All faults of the index, found by reading it completely.

        A fault that was repaired when the index was opened for writing is not among them.
        """
        found = self._catalog.faults()
        try:
            manifest = Manifest.read(self.folder)
            if manifest.file is not None:
                fault = manifest.file.fault(self.folder, thorough=True)
                found += [f"{self.folder / manifest.file.name} {fault}"] if fault else []
        except CouceError as error:
            found.append(str(error))
        return found

    def wait(self) -> None:
        """Waits for the compaction in the background. Raises its error if it failed."""
        if self._thread is not None:
            self._thread.join()
        if self._fault is not None:
            fault, self._fault = self._fault, None
            raise fault

    # Private parts.

    def _adopt(self, model_hash: str | None, dim: int | None) -> None:
        """Takes over the index's model and dimension, and refuses a different model.

        An index that has none yet gets those that were given.
        """
        with self._catalog.reading() as db:
            found = rows.state(db)
        check_model(str(self.folder), found.model_hash, found.dim, model_hash, dim)
        self.model_hash = found.model_hash or model_hash
        self.dim = found.dim or dim
        if self._writes and (self.model_hash, self.dim) != (found.model_hash, found.dim):
            with self._catalog.writing() as (db, _):
                db.execute("UPDATE state SET model_hash = ?, dim = ?", (self.model_hash, self.dim))

    def _mend(self) -> None:
        """Repairs the manifest and the FAISS file after a crash or a fault, from the catalog."""
        for part in self.folder.glob("*.part"):
            part.unlink()
        with self._catalog.reading() as db:
            found = rows.state(db)
        structure = Structure()
        try:
            manifest = Manifest.read(self.folder)
            structure = manifest.structure
            fault = file_fault(self.folder, manifest, found, patient=False)
            # A compaction was killed just before it noted the new file in the catalog.
            if fault is None and manifest.revision > found.main_revision:
                settle(self._catalog, manifest.revision)
            if fault is None:
                sweep(self.folder, manifest)
        except NewerFormatError:
            raise
        except CouceError as error:
            fault = str(error)
        if fault is not None:
            if found.total:
                log.warning("%s; the search structure is rebuilt from the catalog", fault)
            compact(self.folder, self._catalog, structure)

    @contextmanager
    def _now(self) -> Iterator[tuple[Connection, Moment]]:
        """A read transaction of the catalog, and the vectors in memory for its revision."""
        for attempt in count():
            with self._catalog.reading() as db:
                found = rows.state(db)
                moment = self._memory.at(db, found, patient=attempt < ATTEMPTS)
                if moment is not None:
                    self.dim = found.dim or self.dim
                    self.model_hash = found.model_hash or self.model_hash
                    yield db, moment
                    return

    def _compact_if_due(self) -> None:
        if not self._background or (self._thread is not None and self._thread.is_alive()):
            return
        with self._catalog.reading() as db:
            if not due(db):
                return
        self._thread = threading.Thread(target=self._compact_quietly, name="compact")
        self._thread.start()

    def _compact_quietly(self) -> None:
        try:
            if self._lock is not None:
                self.compact(fresh=False)
                return
            try:
                lock = WriterLock(self.folder / "writer.lock")
            except CouceError:  # another process has the lock and will compact
                return
            try:
                compact(self.folder, self._catalog, self.structure(), fresh=False)
            finally:
                lock.release()
        except Exception as error:  # wait() raises it again
            self._fault = error
            log.warning("compaction failed: %s", error)


def _size(path: Path) -> int:
    """The size of a file, or 0 if a compaction has just deleted it."""
    try:
        return path.stat().st_size if path.is_file() else 0
    except FileNotFoundError:
        return 0
