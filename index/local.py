"""An index in a folder: catalog, FAISS file and manifest, for one writer and any number of readers.

A search takes a moment of the catalog (a read transaction) and what is in memory for just that revision:
the FAISS file, the rows that came after it, and the numbers of those that went. What is in memory is never
changed but replaced, so that whoever searches goes on with what it took.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import count
from pathlib import Path
from sqlite3 import Connection
from types import TracebackType
from typing import Any, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from couce.errors import CouceError
from couce.index import catalog
from couce.index.base import (
    Block,
    Hit,
    Item,
    NewItem,
    Vectors,
    check_model,
    check_window,
    stacked,
    unit_rows,
)
from couce.index.catalog import Catalog, Numbers
from couce.index.compaction import compact, due, settle, sweep
from couce.index.filters import Clauses, Filter, clauses
from couce.index.lock import WriterLock
from couce.index.manifest import Manifest, NewerFormatError, Structure
from couce.index.parts import Allowed, Found, MainPart, RecentPart, Truth, merged, nothing

Say = Callable[[str], None]

_ATTEMPTS = 5
_REMEMBERED = 16  # filters whose numbers are kept until the next change


@dataclass(frozen=True)
class Moment:
    """What is in memory for one revision of the catalog."""

    revision: int
    main_revision: int  # the FAISS file that the catalog spoke of, whether it could be used or not
    main: MainPart | None
    recent: RecentPart
    removed: Numbers  # sorted; since the main part was written

    @cached_property
    def main_allowed(self) -> Allowed:
        if self.main is None:
            return Allowed(None, None, 0)
        return Allowed.all_but(self.removed, self.main.last, self.main.count)

    @cached_property
    def recent_allowed(self) -> NDArray[np.intp] | None:
        gone = np.isin(self.recent.numbers, self.removed)
        return np.flatnonzero(~gone) if gone.any() else None


class LocalIndex:
    """An index in a folder; made when it is opened for writing and not there."""

    def __init__(
        self,
        folder: Path,
        mode: Literal["read", "write"] = "read",
        model_hash: str | None = None,
        dim: int | None = None,
        say: Say = lambda _: None,
        background: bool = True,
    ) -> None:
        self.folder, self._say, self._background = folder, say, background
        self.dim: int | None = None
        self.model_hash: str | None = None
        self._lock: WriterLock | None = None
        self._moving = threading.Lock()  # held by whoever brings the memory up to date
        self._compacting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._fault: BaseException | None = None
        self._filters: OrderedDict[tuple[int, int, str], _Chosen] = OrderedDict()
        self._moment: Moment | None = None
        self._reported: set[str] = set()
        if mode == "write":
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = WriterLock(folder / "writer.lock")
        elif not folder.is_dir():
            raise CouceError(f"there is no index in {folder}; `couce index build` makes one")
        try:
            self._catalog = Catalog(folder, mode == "write")
            self._adopt(model_hash, dim)
            if mode == "write":
                self._mend()
            with self._now():
                pass  # what is wrong comes out now rather than in the first search
        except BaseException:
            self.close()
            raise

    # The calls of an Index.

    def add(self, items: Iterable[NewItem]) -> list[str]:
        """All of them or none."""
        new = list(items)
        kept = [each.item() for each in new]
        given = [place for place, each in enumerate(new) if each.vector is not None]
        rows: list[Any] = [None] * len(new)
        dim = self.dim
        if given:
            vectors = unit_rows(stacked([new[place].vector for place in given]), dim)
            dim = vectors.shape[1]
            for place, vector in zip(given, vectors, strict=True):
                rows[place] = vector
        with self._catalog.writing() as (db, revision):
            found = catalog.state(db)
            check_model(
                str(self.folder), None, found.dim, None, dim
            )  # another thread may have begun
            if found.dim is None:
                db.execute("UPDATE state SET dim = ?", (dim,))
            catalog.put(db, revision, list(zip(kept, rows, strict=True)))
        self.dim = dim
        self._compact_if_due()
        return [item.id for item in kept]

    def remove(self, ids: Iterable[str]) -> int:
        with self._catalog.writing() as (db, revision):
            dropped = catalog.drop(db, revision, list(ids))
        self._compact_if_due()
        return dropped

    def get(self, id: str) -> Item | None:
        return self.get_many([id])[0]

    def get_many(self, ids: Sequence[str]) -> list[Item | None]:
        with self._catalog.reading() as db:
            found = catalog.items_by_id(db, ids)
        return [found[id][1] if id in found else None for id in ids]

    def items(self, offset: int = 0, limit: int = 100, filter: Filter | None = None) -> list[Item]:
        check_window(max(1, limit), offset)
        with self._catalog.reading() as db:
            return catalog.page(db, clauses(filter), offset, max(0, limit))

    def every_item(self) -> Iterator[Item]:
        last = ""
        while True:
            with self._catalog.reading() as db:
                block = catalog.page_after(db, last, catalog.BLOCK)
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
            found = self._nearest(db, moment, queries, k + offset, found_clauses)
            numbers = found.numbers[:, offset:].tolist()
            items = catalog.items_of(db, {n for row in numbers for n in row if n >= 0})
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
            return catalog.state(db).total

    def labels(self) -> dict[str, int]:
        with self._catalog.reading() as db:
            return catalog.label_counts(db)

    def vectors(self, ids: Sequence[str] | None = None) -> Iterator[Block]:
        last, start = "", 0
        while True:
            with self._catalog.reading() as db:
                if ids is None:
                    part = [item.id for item in catalog.page_after(db, last, catalog.BLOCK)]
                else:
                    part = list(ids[start : start + catalog.BLOCK])
                if not part:
                    return
                last, start = part[-1], start + catalog.BLOCK
                found = catalog.items_by_id(db, part)
                there = [id for id in part if id in found]
                numbers = np.array([found[id][0] for id in there], np.int64)
                rows = catalog.vectors_of(db, numbers, catalog.state(db).dim or 0)
            if there:
                yield Block(there, [found[id][1].label for id in there], rows)

    def info(self) -> dict[str, Any]:
        with self._now() as (db, moment):
            found = catalog.state(db)
            labels = len(catalog.label_counts(db))
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
            "bytes": sum(path.stat().st_size for path in self.folder.iterdir() if path.is_file()),
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

    # What only a folder has.

    def structure(self) -> Structure:
        """How the vectors are arranged now, or would be by default."""
        with suppress(CouceError):
            return Manifest.read(self.folder).structure
        return Structure()

    def compact(self, structure: Structure | None = None, fresh: bool = True) -> Manifest:
        """Writes a new FAISS file of all that is there, in the given structure or as it was.

        Unless ``fresh``, lists that were learned before are kept while they fit.
        """
        if self._lock is None:
            raise CouceError(f"{self.folder} is open for reading; open it with mode='write'")
        with self._compacting:
            return compact(self.folder, self._catalog, structure or self.structure(), fresh)

    def faults(self) -> list[str]:
        """Everything that is wrong, found by reading all of it; what a writer mended is not."""
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
        """Until no compaction is under way; one that failed is raised here."""
        if self._thread is not None:
            self._thread.join()
        if self._fault is not None:
            fault, self._fault = self._fault, None
            raise fault

    # Inside.

    def _adopt(self, model_hash: str | None, dim: int | None) -> None:
        """The index's model and dimension, those given where it has none yet; others are refused."""
        with self._catalog.reading() as db:
            found = catalog.state(db)
        check_model(str(self.folder), found.model_hash, found.dim, model_hash, dim)
        self.model_hash = found.model_hash or model_hash
        self.dim = found.dim or dim
        if self._lock is not None and (self.model_hash, self.dim) != (found.model_hash, found.dim):
            with self._catalog.writing() as (db, _):
                db.execute("UPDATE state SET model_hash = ?, dim = ?", (self.model_hash, self.dim))

    def _mend(self) -> None:
        """Puts right what a crash or a fault left: the manifest and the FAISS file follow the catalog."""
        for part in self.folder.glob("*.part"):
            part.unlink()
        with self._catalog.reading() as db:
            found = catalog.state(db)
        structure = Structure()
        try:
            manifest = Manifest.read(self.folder)
            structure = manifest.structure
            fault = _fault(self.folder, manifest, found, patient=False)
            if fault is None and manifest.revision > found.main_revision:
                settle(self._catalog, manifest.revision)  # killed just before it
            if fault is None:
                sweep(self.folder, manifest)
        except NewerFormatError:
            raise
        except CouceError as error:
            fault = str(error)
        if fault is not None:
            if found.total:
                self._say(f"{fault}; rebuilt from the catalog")
            compact(self.folder, self._catalog, structure)

    @contextmanager
    def _now(self) -> Iterator[tuple[Connection, Moment]]:
        """A moment of the catalog, and the memory for it."""
        for attempt in count():
            with self._catalog.reading() as db:
                found = catalog.state(db)
                moment = self._moment
                if moment is None or (moment.revision, moment.main_revision) != found[3:5]:
                    moment = self._caught_up(db, found, patient=attempt < _ATTEMPTS)
                if moment is not None:
                    yield db, moment
                    return

    def _caught_up(self, db: Connection, found: catalog.State, patient: bool) -> Moment | None:
        """The memory for the revision that ``db`` sees; None if it is past that already."""
        with self._moving:
            moment = self._moment
            if moment is not None and moment.revision > found.revision:
                if patient:
                    return None
                moment = None  # the catalog was put back from an older copy
            self.dim, self.model_hash = found.dim or self.dim, found.model_hash or self.model_hash
            if moment is None or moment.main_revision != found.main_revision:
                main = self._load_main(found, moment.main if moment is not None else None, patient)
                if main is not None and main.revision > found.revision:
                    return None  # written after the moment that db sees
                if moment is None or main is None or main is not moment.main:
                    # Without a FAISS file to use, all rows are recent ones.
                    moment = _beginning(found, main)
                else:
                    moment = replace(moment, main_revision=found.main_revision)
            if moment.revision < found.revision:
                recent = moment.recent
                for numbers, vectors in catalog.arrived(db, found.dim or 0, moment.revision):
                    recent = recent.grown(numbers, vectors)
                removed = np.union1d(moment.removed, catalog.departed(db, moment.revision))
                moment = replace(moment, revision=found.revision, recent=recent, removed=removed)
            self._moment = moment
            return moment

    def _load_main(
        self, found: catalog.State, held: MainPart | None, patient: bool
    ) -> MainPart | None:
        """The FAISS file if it can be used; said in a line if it cannot."""
        if not found.main_revision:
            return None
        fault = ""
        for _ in range(_ATTEMPTS):  # a writer may be putting a newer one in its place
            try:
                manifest = Manifest.read(self.folder)
                fault = _fault(self.folder, manifest, found, patient) or ""
                if not fault:
                    if manifest.file is None:
                        return None
                    if held is not None and held.file == manifest.file:
                        return held
                    return MainPart(self.folder, manifest, manifest.file)
            except NewerFormatError:
                raise
            except CouceError as error:
                fault = str(error)
        if fault not in self._reported:
            self._reported.add(fault)
            self._say(
                f"{fault}; searched without it, `couce index compact {self.folder}` mends that"
            )
        return None

    def _nearest(
        self, db: Connection, moment: Moment, queries: Vectors, k: int, found_clauses: Clauses
    ) -> Found:
        found = nothing(len(queries))
        if not len(queries):
            return found
        chosen = self._chosen(db, moment, found_clauses) if found_clauses else None
        if moment.main is not None:
            allowed = chosen.main if chosen is not None else moment.main_allowed
            dim = queries.shape[1]
            truth = Truth(
                lambda numbers: catalog.vectors_of(db, numbers, dim),
                lambda last: catalog.numbers_up_to(db, last),
            )
            found = moment.main.search(queries, k, allowed, truth)
        if moment.recent.size:
            places = chosen.recent if chosen is not None else moment.recent_allowed
            found = merged(found, moment.recent.search(queries, k, places), k)
        return found

    def _chosen(self, db: Connection, moment: Moment, found_clauses: Clauses) -> "_Chosen":
        # As text, since True == 1 in Python and not in metadata.
        key = (moment.revision, moment.main_revision, repr(found_clauses))
        with suppress(KeyError):
            return self._filters[key]
        numbers = catalog.chosen(db, found_clauses)
        last = moment.main.last if moment.main is not None else 0
        places = np.flatnonzero(np.isin(moment.recent.numbers, numbers))
        found = self._filters[key] = _Chosen(Allowed.these(numbers, last), places)
        with suppress(KeyError):  # another thread may be at it too
            while len(self._filters) > _REMEMBERED:
                self._filters.popitem(last=False)
        return found

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
            self.compact(fresh=False)
        except Exception as error:  # told now, and raised by wait()
            self._fault = error
            self._say(f"compaction failed: {error}")


class _Chosen(NamedTuple):
    """What a filter lets through."""

    main: Allowed
    recent: NDArray[np.intp]  # places in the recent part


def _beginning(found: catalog.State, main: MainPart | None) -> Moment:
    since = main.revision if main is not None else 0
    recent = RecentPart()
    return Moment(since, found.main_revision, main, recent, np.empty(0, np.int64))


def _fault(folder: Path, manifest: Manifest, found: catalog.State, patient: bool) -> str | None:
    """Why the FAISS file of this manifest must not be used with this catalog."""
    name = folder / "manifest.json"
    if manifest.catalog != found.identity:
        return f"{name} is of another catalog"
    if manifest.revision < found.main_revision:
        return f"{name} is older than the catalog"
    if manifest.revision > found.revision and not patient:
        return f"{name} is newer than the catalog"
    fault = manifest.file.fault(folder) if manifest.file is not None else None
    return f"{folder / manifest.file.name} {fault}" if manifest.file is not None and fault else None
