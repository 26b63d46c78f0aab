"""Compaction: replaces the FAISS file by a new one with all vectors of the catalog.

The process may be killed at any point, thanks to the order of the steps:

1. The new file is written under its own name.
2. The manifest is replaced and names the new file.
3. The catalog notes the new file, and forgets the removals that the file already contains.
4. The old file is deleted. A reader that has it open can still use it.
"""

import os
from contextlib import suppress
from pathlib import Path
from sqlite3 import Connection

from couce.errors import CouceError
from couce.files import replace_file
from couce.index.local import rows
from couce.index.local.catalog import Catalog
from couce.index.local.manifest import Manifest, Structure, VectorFile
from couce.index.local.structures import Built, build
from couce.machine.libraries import import_library

_ALWAYS = 4096  # so many changes are always allowed before a compaction is due,
_SHARE = 25  # and one more for each 25 items
_GROWN = 1.5  # a structure is trained again if the number of vectors changes by this factor


def due(db: Connection) -> bool:
    """Whether there are so many changes since the last compaction that they slow down searches."""
    found = rows.state(db)
    (added,) = db.execute(
        "SELECT count(*) FROM items WHERE revision > ?", (found.main_revision,)
    ).fetchone()
    (removed,) = db.execute("SELECT count(*) FROM removed").fetchone()
    return bool(added + removed > _ALWAYS + found.total // _SHARE)


def compact(folder: Path, truth: Catalog, structure: Structure, fresh: bool = True) -> Manifest:
    """Writes a new FAISS file with all vectors of the catalog, and returns its manifest.

    With ``fresh``, the structure is trained and measured again. Otherwise the old file is updated
    with the changes, if that is possible.
    """
    built, last = None, 0
    with truth.reading() as db:
        found = rows.state(db)
        if found.total and found.dim:
            dim = found.dim
            built = None if fresh else _continued(folder, db, found, structure)
            built = built or build(
                structure,
                found.total,
                dim,
                lambda: rows.everything(db, dim),
                machine_memory(),
            )
            (last,) = db.execute("SELECT max(number) FROM items").fetchone()
    file = None
    if built is not None:
        file = _write(folder / f"vectors-{found.revision}.faiss", built)
        structure = _with_size(built.structure, file.size)
    manifest = Manifest(
        catalog=found.identity,
        model_hash=found.model_hash,
        dim=found.dim,
        revision=found.revision,
        count=found.total,
        last=last,
        structure=structure,
        file=file,
    )
    manifest.write(folder)
    settle(truth, found.revision)
    sweep(folder, manifest)
    return manifest


def _continued(
    folder: Path, db: Connection, found: rows.State, structure: Structure
) -> Built | None:
    """The old FAISS file, updated with the removed and added vectors.

    None if it cannot be used, or if the number of vectors has changed so much that its inverted
    lists no longer fit.
    """
    faiss = import_library("faiss")

    try:
        old = Manifest.read(folder)
    except CouceError:
        return None
    kept = old.structure
    usable = (
        old.file is not None
        and old.catalog == found.identity
        and found.main_revision <= old.revision <= found.revision
        and (kept.asked, kept.recall) == (structure.asked, structure.recall)
        and "IVF" in kept.factory
        and kept.built_for <= _GROWN * found.total
        and found.total <= _GROWN * kept.built_for
    )
    if not usable or old.file is None or old.file.fault(folder):
        return None
    try:
        index = faiss.read_index(str(folder / old.file.name))
        gone = rows.departed(db, old.revision)
        if len(gone):
            index.remove_ids(faiss.IDSelectorBatch(gone))
        for numbers, vectors in rows.arrived(db, found.dim or 0, old.revision):
            index.add_with_ids(vectors, numbers)
    except RuntimeError:  # some structures cannot remove vectors
        return None
    return Built(index, kept) if index.ntotal == found.total else None


def settle(truth: Catalog, revision: int) -> None:
    """Notes in the catalog the revision of the FAISS file, and forgets the removals before it."""
    with truth.writing() as (db, _):
        db.execute("UPDATE state SET main_revision = ?", (revision,))
        db.execute("DELETE FROM removed WHERE revision <= ?", (revision,))


def sweep(folder: Path, manifest: Manifest) -> None:
    """Deletes the FAISS files that the manifest does not name."""
    for path in folder.glob("vectors-*.faiss"):
        if manifest.file is None or path.name != manifest.file.name:
            with suppress(OSError):
                path.unlink()


def machine_memory() -> int | None:
    """The memory of this machine in bytes, or None if it is unknown."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return None


def _write(path: Path, built: Built) -> VectorFile:
    faiss = import_library("faiss")

    def write(part: Path) -> None:
        try:
            faiss.write_index(built.index, str(part))
        except RuntimeError as error:
            raise CouceError(
                f"{path} could not be written ({_reason(error)}); check that the disk has space."
                " The catalog still has all items"
            ) from None

    replace_file(path, write)
    return VectorFile.of(path)


def _reason(error: RuntimeError) -> str:
    text = str(error).strip()
    return text.splitlines()[-1] if text else "no reason given"


def _with_size(structure: Structure, size: int) -> Structure:
    """The structure with the size of its file in the measurement."""
    if structure.measured is None:
        return structure
    measured = structure.measured.model_copy(update={"bytes": size})
    return structure.model_copy(update={"measured": measured})
