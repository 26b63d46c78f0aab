"""A new FAISS file of all that the catalog holds, put in place of the old one in one step.

The order is what makes it safe to be killed anywhere: the file under a name of its own, the manifest that
names it, the catalog's note that it is there (only then may it forget what was removed before), and at
last the old file goes. Readers that have it open keep it until they notice.
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

_ALWAYS = 4096  # changes that are never worth a new file
_SHARE = 25  # beyond that, one for each so many items
_GROWN = 1.5  # times as many vectors, or as few: learned anew


def due(db: Connection) -> bool:
    """Whether so much has changed since the FAISS file that searching the changes tells."""
    found = rows.state(db)
    (added,) = db.execute(
        "SELECT count(*) FROM items WHERE revision > ?", (found.main_revision,)
    ).fetchone()
    (removed,) = db.execute("SELECT count(*) FROM removed").fetchone()
    return bool(added + removed > _ALWAYS + found.total // _SHARE)


def compact(folder: Path, truth: Catalog, structure: Structure, fresh: bool = True) -> Manifest:
    """``fresh``: learned and measured anew; else the old file with its changes, where that will do."""
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
        structure = _weighed(built.structure, file.size)
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
    """The old file without what went and with what came: its lists still fit while the number of vectors
    is much the same."""
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
    except RuntimeError:  # some structures cannot forget
        return None
    return Built(index, kept) if index.ntotal == found.total else None


def settle(truth: Catalog, revision: int) -> None:
    """The catalog's note of the FAISS file: what was removed before it need not be remembered."""
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
    """Bytes of this machine, where it says so."""
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
                f"{path} could not be written ({_reason(error)}); is the disk full? The catalog has"
                " everything all the same"
            ) from None

    replace_file(path, write)
    return VectorFile.of(path)


def _reason(error: RuntimeError) -> str:
    text = str(error).strip()
    return text.splitlines()[-1] if text else "no reason given"


def _weighed(structure: Structure, size: int) -> Structure:
    if structure.measured is None:
        return structure
    measured = structure.measured.model_copy(update={"bytes": size})
    return structure.model_copy(update={"measured": measured})
