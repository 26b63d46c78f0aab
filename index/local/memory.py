"""The vectors of an index in a folder that are in memory, for the latest revision of its catalog.

A moment has the FAISS file, the rows that were added after the file was written, and the numbers of
the removed rows. It never changes: a new revision replaces it by a new moment. So a search can
finish with the moment with which it has begun.
"""

import logging
import threading
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from sqlite3 import Connection
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from couce.errors import CouceError
from couce.index.base import Vectors
from couce.index.filters import Clauses
from couce.index.local import rows
from couce.index.local.manifest import Manifest, NewerFormatError
from couce.index.local.parts import Allowed, MainPart, Nearest, RecentPart, Truth, merged, nothing

log = logging.getLogger(__name__)

ATTEMPTS = 5
_REMEMBERED = 16  # how many filters have their row numbers cached


@dataclass(frozen=True)
class Moment:
    """The vectors in memory for one revision of the catalog."""

    revision: int
    main_revision: int  # of the FAISS file that the catalog names, even if it cannot be used
    main: MainPart | None
    recent: RecentPart
    removed: rows.Numbers  # the rows removed since the main part was written, sorted

    @cached_property
    def main_allowed(self) -> Allowed:
        if self.main is None:
            return Allowed(None, None, 0)
        return Allowed.all_but(self.removed, self.main.last, self.main.count)

    @cached_property
    def recent_allowed(self) -> NDArray[np.intp] | None:
        gone = np.isin(self.recent.numbers, self.removed)
        return np.flatnonzero(~gone) if gone.any() else None


class Memory:
    """Keeps the latest moment up to date, and searches in a moment."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._moving = threading.Lock()  # held while the moment is brought up to date
        self._moment: Moment | None = None
        self._filters: OrderedDict[tuple[int, int, str], _Chosen] = OrderedDict()
        self._reported: set[str] = set()

    def at(self, db: Connection, found: rows.State, patient: bool) -> Moment | None:
        """The moment for the revision that ``db`` sees. It is brought up to date if necessary.

        None if the memory already has a newer revision; the caller must then begin a new
        transaction. If not ``patient``, a memory or a manifest that is newer than the catalog is
        ignored instead.
        """
        moment = self._moment
        if moment is not None and (moment.revision, moment.main_revision) == found[3:5]:
            return moment
        with self._moving:
            moment = self._moment
            if moment is not None and moment.revision > found.revision:
                if patient:
                    return None
                moment = None  # the catalog was restored from an older copy
            if moment is None or moment.main_revision != found.main_revision:
                main = self._load_main(found, moment.main if moment is not None else None, patient)
                if main is not None and main.revision > found.revision:
                    return None  # the file was written after this transaction began
                if moment is None or main is None or main is not moment.main:
                    # Without a FAISS file, all rows become recent ones.
                    moment = _beginning(found, main)
                else:
                    moment = replace(moment, main_revision=found.main_revision)
            if moment.revision < found.revision:
                recent = moment.recent
                for numbers, vectors in rows.arrived(db, found.dim or 0, moment.revision):
                    recent = recent.grown(numbers, vectors)
                removed = np.union1d(moment.removed, rows.departed(db, moment.revision))
                moment = replace(moment, revision=found.revision, recent=recent, removed=removed)
            self._moment = moment
            return moment

    def _load_main(
        self, found: rows.State, held: MainPart | None, patient: bool
    ) -> MainPart | None:
        """The FAISS file, or None and a warning if it cannot be used."""
        if not found.main_revision:
            return None
        fault = ""
        # Several attempts, because a writer may be replacing the file right now.
        for _ in range(ATTEMPTS):
            try:
                manifest = Manifest.read(self._folder)
                fault = file_fault(self._folder, manifest, found, patient) or ""
                if not fault:
                    if manifest.file is None:
                        return None
                    if held is not None and held.file == manifest.file:
                        return held
                    return MainPart(self._folder, manifest, manifest.file)
            except NewerFormatError:
                raise
            except CouceError as error:
                fault = str(error)
        if fault not in self._reported:
            self._reported.add(fault)
            log.warning(
                "%s; searches are slower without it; repair it with `couce index compact %s`",
                fault,
                self._folder,
            )
        return None

    def nearest(
        self, db: Connection, moment: Moment, queries: Vectors, k: int, found_clauses: Clauses
    ) -> Nearest:
        """The nearest rows of each query in a moment, among those that match the filter."""
        found = nothing(len(queries))
        if not len(queries):
            return found
        chosen = self._chosen(db, moment, found_clauses) if found_clauses else None
        if moment.main is not None:
            allowed = chosen.main if chosen is not None else moment.main_allowed
            dim = queries.shape[1]
            truth = Truth(
                lambda numbers: rows.vectors_of(db, numbers, dim),
                lambda last: rows.numbers_up_to(db, last),
            )
            found = moment.main.search(queries, k, allowed, truth)
        if moment.recent.size:
            places = chosen.recent if chosen is not None else moment.recent_allowed
            found = merged(found, moment.recent.search(queries, k, places), k)
        return found

    def _chosen(self, db: Connection, moment: Moment, found_clauses: Clauses) -> "_Chosen":
        # The key is text, because True == 1 in Python but not in metadata.
        key = (moment.revision, moment.main_revision, repr(found_clauses))
        with suppress(KeyError):
            return self._filters[key]
        numbers = rows.chosen(db, found_clauses)
        last = moment.main.last if moment.main is not None else 0
        places = np.flatnonzero(np.isin(moment.recent.numbers, numbers))
        found = self._filters[key] = _Chosen(Allowed.these(numbers, last), places)
        with suppress(KeyError):  # another thread may remove entries at the same time
            while len(self._filters) > _REMEMBERED:
                self._filters.popitem(last=False)
        return found


class _Chosen(NamedTuple):
    """The rows that match a filter."""

    main: Allowed
    recent: NDArray[np.intp]  # places in the recent part


def _beginning(found: rows.State, main: MainPart | None) -> Moment:
    """A moment with the FAISS file alone, before the later changes are added."""
    since = main.revision if main is not None else 0
    recent = RecentPart()
    return Moment(since, found.main_revision, main, recent, np.empty(0, np.int64))


def file_fault(folder: Path, manifest: Manifest, found: rows.State, patient: bool) -> str | None:
    """Why the FAISS file of this manifest cannot be used with this catalog, or None if it can."""
    name = folder / "manifest.json"
    if manifest.catalog != found.identity:
        return f"{name} belongs to another catalog"
    if manifest.revision < found.main_revision:
        return f"{name} is older than the catalog"
    if manifest.revision > found.revision and not patient:
        return f"{name} is newer than the catalog"
    fault = manifest.file.fault(folder) if manifest.file is not None else None
    return f"{folder / manifest.file.name} {fault}" if manifest.file is not None and fault else None
