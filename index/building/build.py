"""Brings an index up to date with a folder of images.

A file whose path, size and time of writing are known is not even opened. Of any other its sha256 tells
whether the index has these bytes already; only new ones are embedded. Everything is kept a few hundred
images at a time, so that a build that was interrupted goes on where it was.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from couce.index.base import Index, Item, NewItem
from couce.index.building.embedding import EmbedFiles, Outcome
from couce.index.building.scan import Entry, Shard, absolute, scan

COMMIT = 256  # images that are kept at once
_SECONDS = 5.0  # or what has come in this time


@dataclass
class Summary:
    files: int = 0
    unchanged: int = 0
    added: int = 0  # items that were not there
    updated: int = 0  # items whose paths, label or metadata changed
    removed: int = 0
    vanished: int = 0  # known files that are not there and were not dropped
    faults: list[tuple[str, str]] = field(default_factory=list)  # path, reason
    seconds: float = 0.0

    @property
    def changed(self) -> bool:
        return bool(self.added or self.updated or self.removed)


@dataclass
class _Change:
    """What happens to one item."""

    outcome: Outcome | None = None  # with the vector of a new one
    gained: dict[str, int] = field(default_factory=dict)  # paths with their stamps
    lost: set[str] = field(default_factory=set)


class Known:
    """What the index has: of each path the item that has it, of each item its content."""

    def __init__(self, items: Iterable[Item]) -> None:
        self.content: dict[str, str | None] = {}
        self.by_path: dict[str, tuple[Item, int]] = {}  # with the path's stamp
        self.stale: list[tuple[str, str]] = []  # item, path: of what an interruption left behind
        for item in items:
            self.content[item.id] = item.sha256
            for path, stamp in zip(item.paths, item.stamps, strict=True):
                before = self.by_path.get(path)
                if before is not None:  # a file has one content, the one seen last
                    newer = before[0].time > item.time
                    self.stale.append((item.id if newer else before[0].id, path))
                    if newer:
                        continue
                self.by_path[path] = (item, stamp)


def build(
    root: Path,
    index: Index,
    embed_files: EmbedFiles,
    labels: Path | None = None,
    shard: Shard | None = None,
    prune: bool = False,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> Summary:
    """Embeds what is new below ``root``; ``progress`` is told how many files of how many are done."""
    start = time.perf_counter()
    entries = scan(root, labels, shard)
    known = Known(index.every_item())
    work = _Work(index, known, {entry.path: entry for entry in entries}, labels is not None)
    work.summary.files = len(entries)
    to_read = []
    for entry in entries:
        if _same(entry, known.by_path.get(entry.path)):
            work.summary.unchanged += 1
            work.relabel(entry)
        else:
            to_read.append(entry)
    progress(0, len(to_read))
    kept, since = 0, time.perf_counter()
    for done, outcome in enumerate(embed_files(to_read, known.content), 1):
        work.take(outcome)
        if done - kept >= COMMIT or time.perf_counter() - since > _SECONDS:
            work.keep()
            kept, since = done, time.perf_counter()
        progress(done, len(to_read))
    _vanished(work, root, shard, prune)
    work.finish()
    work.keep()
    work.summary.seconds = time.perf_counter() - start
    return work.summary


class _Work:
    """Changes that wait to be kept together."""

    def __init__(
        self, index: Index, known: Known, present: dict[str, Entry], has_list: bool
    ) -> None:
        self.index, self.known, self.present, self.has_list = index, known, present, has_list
        self.summary = Summary()
        self._changes: dict[str, _Change] = {}
        self._later: dict[str, list[Outcome]] = {}  # files whose bytes another file is embedded for
        # Items and the paths that they have no more. Taken from them at the end: until then an item that
        # seems to have no file left may turn up under another name.
        self.lost = list(known.stale)

    def change(self, id: str) -> _Change:
        return self._changes.setdefault(id, _Change())

    def take(self, outcome: Outcome) -> None:
        entry = outcome.entry
        if outcome.fault is not None:
            self.summary.faults.append((entry.path, outcome.fault))
            return
        if outcome.vector is None and outcome.id not in self.known.content:
            self._later.setdefault(outcome.id, []).append(outcome)
            return
        change = self.change(outcome.id)
        change.gained[entry.path] = entry.stamp
        self.present[entry.path] = entry
        if outcome.vector is not None:
            change.outcome = outcome
            self.known.content[outcome.id] = outcome.sha256
            for twin in self._later.pop(outcome.id, []):
                self.take(twin)
        before = self.known.by_path.get(entry.path)
        if before is not None and before[0].id != outcome.id:
            self.lost.append((before[0].id, entry.path))

    def relabel(self, entry: Entry) -> None:
        """Notes an unchanged file whose item does not say what the folder or the list says now."""
        item, _ = self.known.by_path[entry.path]
        label, metadata = self._described(item.paths, item)
        if (label, metadata) != (item.label, item.metadata):
            self.change(item.id)

    def finish(self) -> None:
        """What can only be said when all files were seen."""
        for id, path in self.lost:
            self.change(id).lost.add(path)
        self.lost.clear()
        # Files with the bytes of one that could not be read cannot be either.
        for twins in self._later.values():
            for twin in twins:
                self.summary.faults.append(
                    (twin.entry.path, "the same bytes cannot be read elsewhere")
                )
        self._later.clear()

    def keep(self) -> None:
        """Puts all changes into the index, so many at a time."""
        changes, self._changes = self._changes, {}
        for start in range(0, len(changes), COMMIT):
            self._keep(dict(islice(changes.items(), start, start + COMMIT)))

    def _keep(self, changes: dict[str, _Change]) -> None:
        ids = list(changes)
        additions: list[NewItem] = []
        removals: list[str] = []
        for id, item in zip(ids, self.index.get_many(ids), strict=True):
            change = changes[id]
            paths = dict(zip(item.paths, item.stamps, strict=True)) if item is not None else {}
            for path in change.lost - change.gained.keys():
                paths.pop(path, None)
            paths |= change.gained
            if not paths:
                removals += [id] if item is not None else []
                continue
            new = self._new(id, item, change, dict(sorted(paths.items())))
            if new is not None:
                additions.append(new)
                self.summary.added += item is None
                self.summary.updated += item is not None
        if additions:
            self.index.add(additions)
        if removals:
            self.summary.removed += self.index.remove(removals)

    def _new(
        self, id: str, item: Item | None, change: _Change, paths: dict[str, int]
    ) -> NewItem | None:
        outcome = change.outcome
        vector: NDArray[np.float32] | None = outcome.vector if outcome is not None else None
        if item is None and vector is None:
            return None
        label, metadata = self._described(tuple(paths), item)
        return NewItem(
            vector,
            id=id,
            label=label,
            sha256=outcome.sha256 if outcome is not None else item.sha256 if item else None,
            size=outcome.entry.size if outcome is not None else item.size if item else None,
            paths=tuple(paths),
            metadata=metadata,
            stamps=tuple(paths.values()),
        )

    def _described(
        self, paths: tuple[str, ...], item: Item | None
    ) -> tuple[str | None, dict[str, Any]]:
        """Label and metadata: those of the first of its files that is there, and has a label."""
        own = dict(item.metadata) if item is not None else {}
        there = [self.present[path] for path in paths if path in self.present]
        first = next(
            (entry for entry in there if entry.label is not None), there[0] if there else None
        )
        if first is None:
            return (item.label if item is not None else None), own
        return first.label, dict(first.metadata) if self.has_list else own


def _same(entry: Entry, known: tuple[Item, int] | None) -> bool:
    if known is None:
        return False
    item, stamp = known
    return (entry.size, entry.stamp, entry.id or item.id) == (item.size, stamp, item.id)


def _vanished(work: _Work, root: Path, shard: Shard | None, prune: bool) -> None:
    """Known files of this folder that are there no more."""
    beginning = absolute(root).rstrip("/") + "/"
    for path, (item, _) in work.known.by_path.items():
        if path in work.present or not path.startswith(beginning):
            continue
        if shard is not None and not shard.holds(path.removeprefix(beginning)):
            continue
        if prune:
            work.lost.append((item.id, path))
        else:
            work.summary.vanished += 1
