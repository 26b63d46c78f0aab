"""The commands of `couce index`, without the command line."""

import hashlib
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from couce.embedder import Embedder
from couce.errors import CouceError, unknown_name
from couce.files import printable
from couce.index.base import Index, NewItem
from couce.index.building.build import BuildSummary, build
from couce.index.building.embedding import EmbedFiles, in_process, read
from couce.index.building.scan import Entry, Shard, absolute
from couce.index.local.catalog import NAME as CATALOG
from couce.index.local.index import LocalIndex
from couce.index.local.manifest import Manifest, Structure
from couce.index.local.structures import check_type
from couce.index.opening import is_remote, open_index
from couce.index.plan import gigabytes
from couce.index.progress import ProgressBar
from couce.preprocess import ImageError, Preprocess

log = logging.getLogger(__name__)

ENGINES = ("here", "ray")


def build_index(
    gallery: str | Path,
    model: str | Path = "model.onnx",
    address: str | Path = "index",
    *,
    labels: str | Path | None = None,
    kind: str | None = None,
    recall: float | None = None,
    shard: str | None = None,
    prune: bool = False,
    engine: str = "here",
    provider: str = "auto",
    preprocess: Preprocess | None = None,
) -> BuildSummary:
    """Builds the index of a folder of images, or brings it up to date, as `couce index build` does.

    Args:
        gallery: the folder of images. The names of its class folders become labels.
        model: the ONNX model that embeds the images.
        address: the index: a folder, or ``milvus+http://host:19530/name``.
        labels: a CSV file with the columns path and label, and optionally id. All other columns
            become metadata.
        kind: the search structure: ``auto``, ``flat``, ``hnsw``, ``ivf``, ``ivfpq`` or a factory
            string of FAISS. The default keeps the structure of the index; a new one gets ``auto``.
        recall: the recall@10 that the search must reach. A new index gets 0.99.
        shard: ``"i/n"`` indexes only the i-th of n parts of the files.
        prune: whether items are removed if their files are gone.
        engine: where images are embedded: ``here`` (this machine) or ``ray`` (a Ray cluster).
        provider: where the model runs: ``auto``, ``cuda``, ``tensorrt`` or ``cpu``.
        preprocess: how images are prepared for a model that does not describe this itself.
    """
    gallery, model, address = Path(gallery), Path(model), str(address)
    if engine not in ENGINES:
        raise unknown_name("engine", engine, ENGINES)
    if kind is not None and not is_remote(address):
        check_type(kind)
    part = Shard.parse(shard) if shard is not None else None
    # This check comes first, so that no empty index is created.
    if not gallery.is_dir():
        raise CouceError(f"there is no folder {gallery}; give the folder of your images")
    digest = model_hash(model)
    with (
        ProgressBar() as bar,
        open_index(address, "write", digest, background=False, kind=kind) as index,
    ):
        embed_files = _embed_files(engine, model, provider, preprocess)
        summary = build(
            gallery,
            index,
            embed_files,
            None if labels is None else Path(labels),
            part,
            prune,
            bar.update,
        )
        manifest = _arrange(index, kind, recall, summary)
    _log(summary, manifest)
    if summary.added and summary.seconds:
        rate = summary.added / summary.seconds
        log.info("%.1f s, %.1f new images/s", summary.seconds, rate)
    return summary


def add_images(
    images: Sequence[str | Path],
    model: str | Path = "model.onnx",
    address: str | Path = "index",
    *,
    label: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    provider: str = "auto",
    preprocess: Preprocess | None = None,
) -> list[str]:
    """Adds single images and returns their ids, as `couce index add` does.

    If one of the images cannot be read, none is added.
    """
    address = str(address)
    metadata = metadata or {}
    embedder = Embedder(model, provider=provider, preprocess=preprocess)
    read_files = []
    for image in images:
        try:
            entry, content, digest, id = read(Entry(absolute(Path(image)), -1, -1, label))
            read_files.append((entry, content, digest, id))
        except ImageError as error:
            raise CouceError(f"{image}: {error}") from None
    vectors = embedder.embed(content for _, content, _, _ in read_files)
    with open_index(address, "write", embedder.hash, embedder.dim) as index:
        there = index.get_many([id for _, _, _, id in read_files])
        new = []
        for (entry, _, digest, id), vector, found in zip(read_files, vectors, there, strict=True):
            paths = dict(zip(found.paths, found.stamps, strict=True)) if found is not None else {}
            paths[entry.path] = entry.stamp
            new.append(
                NewItem(
                    vector,
                    id=id,
                    label=label if label is not None else found.label if found else None,
                    sha256=digest,
                    size=entry.size,
                    paths=tuple(paths),
                    stamps=tuple(paths.values()),
                    metadata={**(found.metadata if found is not None else {}), **metadata},
                )
            )
        return index.add(new)


def model_hash(model: Path) -> str:
    """The sha256 of a model's file, equal to ``Embedder.hash`` but without loading the model."""
    try:
        return hashlib.sha256(model.read_bytes()).hexdigest()
    except FileNotFoundError:
        raise CouceError(f"there is no model at {model}; create one with `couce export`") from None
    except IsADirectoryError:
        raise CouceError(f"{model} is a folder; give the ONNX file of a model") from None


def measured_line(structure: Structure) -> str:
    """Describes a search structure and its measurement in one line.

    >>> measured_line(Structure())
    'structure IDMap,Flat (asked: auto): exact'
    """
    line = f"structure {structure.factory} (asked: {structure.asked})"
    found = structure.measured
    if found is None:
        return f"{line}: exact"
    exact = (
        f" (exact: {found.exact_milliseconds:.2f} ms)"
        if found.exact_milliseconds is not None
        else ""
    )
    missed = "" if found.reached else f" (less than the {structure.recall} asked for)"
    return (
        f"{line}: recall@{found.k} {found.recall:.4f}{missed} on {found.queries} held-out queries,"
        f" {found.milliseconds:.2f} ms per query{exact}, {gigabytes(found.bytes)}"
    )


def _embed_files(
    name: str, model: Path, provider: str, preprocess: Preprocess | None
) -> EmbedFiles:
    if name == "ray":
        from couce.index.building.on_ray import on_ray

        return on_ray(model, provider, preprocess)
    return in_process(lambda: Embedder(model, provider=provider, preprocess=preprocess))


def _arrange(
    index: Index, kind: str | None, recall: float | None, summary: BuildSummary
) -> Manifest | None:
    """Compacts a folder's index if items changed or if another structure or recall is wanted."""
    if not isinstance(index, LocalIndex):
        return None
    now = index.structure()
    wanted = Structure(
        asked=kind if kind is not None else now.asked,
        recall=recall if recall is not None else now.recall,
    )
    same = (wanted.asked, wanted.recall) == (now.asked, now.recall)
    info = index.info()
    if not summary.changed and same and not info["recent"] and not info["removed"]:
        return None
    return index.compact(wanted)


def _log(summary: BuildSummary, manifest: Manifest | None) -> None:
    done = [
        (summary.added, "added"),
        (summary.updated, "updated"),
        (summary.removed, "removed"),
        (summary.unchanged, "unchanged"),
    ]
    listed = ", ".join(f"{count} {what}" for count, what in done if count)
    log.info("%d images: %s", summary.files, listed or "no changes")
    if manifest is not None:
        log.info(measured_line(manifest.structure))
    if summary.vanished:
        log.info("%d known files are gone; remove them with --prune", summary.vanished)
    for path, reason in summary.faults:
        log.info("not read: %s: %s", printable(path), reason)
    if summary.faults:
        log.info("%d of %d files could not be read", len(summary.faults), summary.files)


def opened_for(address: str, digest: str | None, dim: int | None) -> Index:
    """Opens an index for adding many items; :func:`finish` then compacts it once, at the end."""
    return open_index(address, "write", digest, dim, background=False)


def finish(index: Index) -> None:
    """Compacts an index in a folder. Milvus compacts by itself."""
    if isinstance(index, LocalIndex):
        index.compact()


def rearrange(address: str, kind: str | None, recall: float | None) -> Manifest:
    """Rebuilds the search structure, as `couce index compact` does."""
    if is_remote(address):
        raise CouceError(
            f"{address} is in Milvus, which compacts by itself; give an index in a folder"
        )
    if kind is not None:
        check_type(kind)
    if not (Path(address) / CATALOG).exists():
        raise CouceError(f"there is no index in {address}; create one with `couce index build`")
    with LocalIndex(Path(address), "write", background=False) as index:
        now = index.structure()
        wanted = Structure(asked=kind or now.asked, recall=recall or now.recall)
        return index.compact(wanted)


def verified(address: str) -> list[str]:
    """All faults of an index in a folder, as `couce index verify` lists them."""
    if is_remote(address):
        raise CouceError(
            f"{address} is in Milvus, which has its own checksums; give an index in a folder"
        )
    with LocalIndex(Path(address)) as index:
        return index.faults()
