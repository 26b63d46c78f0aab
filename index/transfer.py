"""Copies items with their vectors from one index to another, or to a file and back."""

import json
import zipfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from couce.errors import CouceError
from couce.files import replace_file
from couce.index.base import Index, Item, NewItem, Vectors, check_model
from couce.index.paths import paths_from_json, paths_json

BLOCK = 1000  # items that are added at once

Progress = Callable[[int], None]
Batch = tuple[list[Item], Vectors]


def copy(
    source: Index, target: Index, join: bool = False, progress: Progress = lambda _: None
) -> int:
    """Copies all items of ``source`` into ``target`` and returns their number.

    An item that both have is replaced. With ``join`` it gets the paths and metadata of both.
    """
    return _put(target, _batches(source), join, progress)


def export_file(index: Index, path: Path, progress: Progress = lambda _: None) -> int:
    """Writes all items to a .parquet or .npz file and returns their number.

    `couce evaluate` reads the .npz, too.
    """
    writers = {".parquet": _write_parquet, ".npz": _write_npz}
    write = writers.get(path.suffix)
    if write is None:
        raise CouceError(f"the name {path} must end in .parquet or .npz")
    written = 0

    def counted() -> Iterator[Batch]:
        nonlocal written
        for items, vectors in _batches(index):
            yield items, vectors
            written += len(items)
            progress(written)

    about = {"dim": index.dim, "model_hash": index.model_hash}
    replace_file(path, lambda part: write(part, counted(), about))
    return written


def import_file(index: Index, path: Path, progress: Progress = lambda _: None) -> int:
    """Adds all items of a file that :func:`export_file` wrote, and returns their number."""
    about, batches = _read(path)
    check_model(str(index.info()["address"]), index.model_hash, index.dim, *about)
    return _put(index, batches, False, progress)


def model_of(path: Path) -> tuple[str | None, int | None]:
    """The model hash and the dimension in a file that :func:`export_file` wrote."""
    return _read(path)[0]


def _read(path: Path) -> tuple[tuple[str | None, int | None], Iterator[Batch]]:
    readers = {".parquet": _read_parquet, ".npz": _read_npz}
    if path.suffix not in readers:
        raise CouceError(f"the name {path} must end in .parquet or .npz")
    if not path.exists():
        raise CouceError(f"there is no file {path}; write one with `couce index export`")
    return readers[path.suffix](path)


def _put(target: Index, batches: Iterable[Batch], join: bool, progress: Progress) -> int:
    done = 0
    for items, vectors in batches:
        new = [NewItem.of(item, vector) for item, vector in zip(items, vectors, strict=True)]
        if join:
            there = target.get_many([item.id for item in items])
            new = [
                each if found is None else _joined(each, found)
                for each, found in zip(new, there, strict=True)
            ]
        target.add(new)
        done += len(new)
        progress(done)
    return done


def _joined(new: NewItem, found: Item) -> NewItem:
    paths = dict(zip(found.paths, found.stamps, strict=True))
    paths |= dict(zip(new.paths, new.stamps, strict=True))
    return replace(
        new,
        label=found.label or new.label,
        metadata={**new.metadata, **found.metadata},
        paths=tuple(sorted(paths)),
        stamps=tuple(paths[path] for path in sorted(paths)),
    )


def _batches(index: Index) -> Iterator[Batch]:
    for block in index.vectors():
        for start in range(0, len(block.ids), BLOCK):
            part = slice(start, start + BLOCK)
            items = index.get_many(block.ids[part])
            there = [place for place, item in enumerate(items) if item is not None]
            yield [item for item in items if item is not None], block.vectors[part][there]


def _row(item: Item) -> dict[str, Any]:
    row = asdict(item)
    row["paths"] = paths_json(item.paths, row.pop("stamps"))
    row["metadata"] = json.dumps(item.metadata, ensure_ascii=False)
    return row


def _item(row: dict[str, Any]) -> Item:
    paths, stamps = paths_from_json(row.pop("paths"))
    metadata = json.loads(row.pop("metadata"))
    return Item(paths=paths, stamps=stamps, metadata=metadata, **row)


def _write_npz(path: Path, batches: Iterable[Batch], about: dict[str, Any]) -> None:
    items, rows = [], []
    for part, vectors in batches:
        items += part
        rows.append(vectors)
    lines = "\n".join(json.dumps(_row(item)) for item in items)
    with path.open("wb") as file:
        np.savez(
            file,
            embeddings=np.concatenate(rows) if rows else np.empty((0, about["dim"] or 0), "f4"),
            labels=np.array([item.label or "" for item in items], dtype=np.str_),
            items=np.frombuffer(lines.encode(), np.uint8),
            about=np.frombuffer(json.dumps(about).encode(), np.uint8),
        )


def _read_npz(path: Path) -> tuple[tuple[str | None, int | None], Iterator[Batch]]:
    try:
        with np.load(path, allow_pickle=False) as arrays:
            about = json.loads(arrays["about"].tobytes())
            text = arrays["items"].tobytes().decode()
            vectors: ArrayLike = arrays["embeddings"]
        items = [_item(json.loads(line)) for line in text.splitlines()]
        rows = np.asarray(vectors, np.float32)
        if rows.ndim != 2 or len(rows) != len(items):
            raise ValueError("items and vectors do not match")
    except (ValueError, KeyError, TypeError, OSError, zipfile.BadZipFile) as error:
        raise CouceError(f"{path} was not written by `couce index export`: {error}") from None

    def batches() -> Iterator[Batch]:
        for start in range(0, len(items), BLOCK):
            yield items[start : start + BLOCK], rows[start : start + BLOCK]

    return (about.get("model_hash"), about.get("dim")), batches()


def _write_parquet(path: Path, batches: Iterable[Batch], about: dict[str, Any]) -> None:
    arrow, parquet = _arrow()
    kinds = {
        "id": arrow.string(),
        "paths": arrow.string(),
        "label": arrow.string(),
        "sha256": arrow.string(),
        "size": arrow.int64(),
        "metadata": arrow.string(),
        "time": arrow.float64(),
    }
    vector = arrow.list_(arrow.float32(), about["dim"] or 1)
    schema = arrow.schema([*kinds.items(), ("vector", vector)], {"couce": json.dumps(about)})
    with parquet.ParquetWriter(path, schema) as writer:
        for items, vectors in batches:
            rows = [_row(item) for item in items]
            columns = [arrow.array([row[name] for row in rows], kinds[name]) for name in kinds]
            flat = arrow.array(vectors.ravel(), arrow.float32())
            columns.append(arrow.FixedSizeListArray.from_arrays(flat, vectors.shape[1]))
            writer.write_batch(arrow.record_batch(columns, schema=schema))


def _read_parquet(path: Path) -> tuple[tuple[str | None, int | None], Iterator[Batch]]:
    arrow, parquet = _arrow()
    try:
        file = parquet.ParquetFile(path)
        about = json.loads(file.schema_arrow.metadata[b"couce"])
    except (arrow.ArrowException, OSError, KeyError, TypeError, ValueError) as error:
        raise CouceError(f"{path} was not written by `couce index export`: {error}") from None

    def batches() -> Iterator[Batch]:
        for batch in file.iter_batches(BLOCK):
            columns = batch.to_pydict()
            names = [name for name in columns if name != "vector"]
            vectors = batch.column("vector").flatten().to_numpy(zero_copy_only=False)
            rows = [
                dict(zip(names, values, strict=True))
                for values in zip(*(columns[name] for name in names), strict=True)
            ]
            yield [_item(row) for row in rows], vectors.reshape(len(rows), -1)

    return (about.get("model_hash"), about.get("dim")), batches()


def _arrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise CouceError(
            "Parquet needs pyarrow, which is not installed; run `pip install pyarrow`, or use .npz"
        ) from None
    return pyarrow, pyarrow.parquet
