"""Brings an index up to date with a folder of images.

A file is not opened if the index knows its path, size and modification time. Any other file is
read, and its sha256 shows whether the index already has its bytes. Only new bytes are embedded.
Changes are stored in groups of a few hundred images, so an interrupted build continues where it
stopped.
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

COMMIT = 256  # changes are stored after so many images,
_SECONDS = 5.0  # or after so many seconds


@dataclass
class BuildSummary:
    """What a build has done."""

    files: int = 0
    unchanged: int = 0
    added: int = 0  # new items
    updated: int = 0  # items whose paths, label or metadata changed
    removed: int = 0
    vanished: int = 0  # files that are gone, but whose items were kept
    faults: list[tuple[str, str]] = field(default_factory=list)  # path and reason
    seconds: float = 0.0

    @property
    def changed(self) -> bool:
        return bool(self.added or self.updated or self.removed)


@dataclass
class _Change:
    """The changes to one item."""

    outcome: Outcome | None = None  # for a new item, with its vector
    gained: dict[str, int] = field(default_factory=dict)  # new paths with their stamps
    lost: set[str] = field(default_factory=set)  # paths that the item no longer has


class Known:
    """The items that the index has, by id and by path."""

    def __init__(self, items: Iterable[Item]) -> None:
        self.content: dict[str, str | None] = {}  # the sha256 of each id
        self.by_path: dict[str, tuple[Item, int]] = {}  # the item of each path, and its stamp
        # Ids with outdated paths. An interrupted build can leave a path in two items.
        self.stale: list[tuple[str, str]] = []
        for item in items:
            self.content[item.id] = item.sha256
            for path, stamp in zip(item.paths, item.stamps, strict=True):
                before = self.by_path.get(path)
                # A file has only one content, so the newer item is right.
                if before is not None:
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
) -> BuildSummary:
    """Brings ``index`` up to date with the images below ``root``.

    ``progress`` is called with the number of files that are done and the number of all files.
    """
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
    """Collects changes and stores many of them at once."""

    def __init__(
        self, index: Index, known: Known, present: dict[str, Entry], has_list: bool
    ) -> None:
        self.index, self.known, self.present, self.has_list = index, known, present, has_list
        self.summary = BuildSummary()
        self._changes: dict[str, _Change] = {}
        # Files with the same bytes as another file that is still being embedded.
        self._later: dict[str, list[Outcome]] = {}
        # Ids with the paths that their items no longer have. The paths are removed at the end,
        # because the same bytes may still be found under another name.
        self.lost = list(known.stale)

    def change(self, id: str) -> _Change:
        return self._changes.setdefault(id, _Change())

    def take(self, outcome: Outcome) -> None:
        """Notes the changes that follow from one file."""
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
        """Notes a change if the item of an unchanged file has another label or metadata now."""
        item, _ = self.known.by_path[entry.path]
        label, metadata = self._described(item.paths, item)
        if (label, metadata) != (item.label, item.metadata):
            self.change(item.id)

    def finish(self) -> None:
        """Notes the changes that are only known after all files were read."""
        for id, path in self.lost:
            self.change(id).lost.add(path)
        self.lost.clear()
        # These files have the same bytes as a file that could not be decoded.
        for twins in self._later.values():
            for twin in twins:
                self.summary.faults.append(
                    (twin.entry.path, "another file with the same bytes could not be read")
                )
        self._later.clear()

    def keep(self) -> None:
        """Stores all changes in the index, ``COMMIT`` at a time."""
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
        """The label and metadata of an item, from the first of its files that has a label.

        If none has a label, they are those of its first file that exists.
        """
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
    """Notes the files of this folder that the index knows but that no longer exist."""
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
