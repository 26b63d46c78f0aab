"""What `couce index` does with a gallery, apart from parsing what was typed."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from couce.embedder import Embedder
from couce.errors import CouceError, unknown_name
from couce.index.base import Hit, Index, NewItem
from couce.index.build import Summary, build
from couce.index.catalog import NAME as CATALOG
from couce.index.embedding import Engine, in_process, read
from couce.index.local import LocalIndex
from couce.index.manifest import Manifest, Structure
from couce.index.memory import Say
from couce.index.opening import is_remote, open_index
from couce.index.plan import gigabytes
from couce.index.report import Report
from couce.index.scan import Entry, Shard, absolute
from couce.index.structures import check_type
from couce.preprocess import ImageError, Preprocess

ENGINES = ("here", "ray")


def run_build(
    gallery: Path,
    model: Path,
    address: str,
    labels: Path | None = None,
    kind: str | None = None,
    recall: float | None = None,
    shard: str | None = None,
    prune: bool = False,
    engine: str = "here",
    provider: str = "auto",
    preprocess: Preprocess | None = None,
) -> Summary:
    """`couce index build`."""
    if engine not in ENGINES:
        raise unknown_name("engine", engine, ENGINES)
    if kind is not None and not is_remote(address):
        check_type(kind)
    part = Shard.parse(shard) if shard is not None else None
    if not gallery.is_dir():  # before an index is made for it
        raise CouceError(f"there is no folder {gallery} to take images from")
    digest = model_hash(model)
    with Report() as report:
        with open_index(
            address, "write", digest, say=report.say, background=False, kind=kind
        ) as index:
            summary = build(
                gallery,
                index,
                _engine(engine, model, provider, preprocess),
                labels,
                part,
                prune,
                report.progress,
            )
            told = _arrange(index, kind, recall, summary)
        _tell(report, summary, told)
        if summary.added and summary.seconds:
            rate = summary.added / summary.seconds
            report.say(f"{summary.seconds:.1f} s, {rate:.1f} new images/s")
    return summary


def run_add(
    images: Sequence[Path],
    model: Path,
    address: str,
    label: str | None,
    metadata: dict[str, Any],
    provider: str = "auto",
    preprocess: Preprocess | None = None,
) -> list[str]:
    """`couce index add`: every image is there afterwards, or none is added."""
    embedder = Embedder(model, provider=provider, preprocess=preprocess)
    read_files = []
    for image in images:
        try:
            entry, content, digest, id = read(Entry(absolute(image), -1, -1, label))
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
    """As the embedder has it, without loading the model."""
    try:
        return hashlib.sha256(model.read_bytes()).hexdigest()
    except FileNotFoundError:
        raise CouceError(f"there is no model at {model}; `couce export` makes one") from None
    except IsADirectoryError:
        raise CouceError(f"{model} is a folder, not a model") from None


def hits_table(hits: Sequence[Hit]) -> Table:
    table = Table()
    for name, justify in (("", "right"), ("cosine", "right"), ("label", "left"), ("path", "left")):
        table.add_column(name, justify=justify, overflow="fold")  # type: ignore[arg-type]
    for rank, hit in enumerate(hits, 1):
        path = hit.item.paths[0] if hit.item.paths else hit.id
        more = f" (+{len(hit.item.paths) - 1})" if len(hit.item.paths) > 1 else ""
        table.add_row(
            str(rank), f"{hit.score:.4f}", printable(hit.item.label or ""), printable(path) + more
        )
    return table


def printable(text: str) -> str:
    """On one line and in letters that any terminal takes, whatever a file is called."""
    plain = text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in plain)


def measured_line(structure: Structure) -> str:
    """
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
    missed = "" if found.reached else f", short of the {structure.recall} asked for"
    return (
        f"{line}: recall@{found.k} {found.recall:.4f}{missed} on {found.queries} held-out queries,"
        f" {found.milliseconds:.2f} ms a query{exact}, {gigabytes(found.bytes)}"
    )


def _engine(name: str, model: Path, provider: str, preprocess: Preprocess | None) -> Engine:
    if name == "ray":
        from couce.index.ray_engine import on_ray

        return on_ray(model, provider, preprocess)
    return in_process(lambda: Embedder(model, provider=provider, preprocess=preprocess))


def _arrange(
    index: Index, kind: str | None, recall: float | None, summary: Summary
) -> Manifest | None:
    """A new FAISS file, if anything changed or another structure is wanted."""
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


def _tell(report: Report, summary: Summary, manifest: Manifest | None) -> None:
    done = [
        (summary.added, "added"),
        (summary.updated, "updated"),
        (summary.removed, "removed"),
        (summary.unchanged, "unchanged"),
    ]
    listed = ", ".join(f"{count} {what}" for count, what in done if count)
    report.say(f"{summary.files} images: {listed or 'nothing to do'}")
    if manifest is not None:
        report.say(measured_line(manifest.structure))
    if summary.vanished:
        report.say(f"{summary.vanished} known files are gone; --prune drops them")
    for path, reason in summary.faults:
        report.say(f"not read: {printable(path)}: {reason}")
    if summary.faults:
        report.say(f"{len(summary.faults)} of {summary.files} could not be read")


def opened_for(address: str, digest: str | None, dim: int | None, say: Say) -> Index:
    """For adding very many: arranged once at the end, by :func:`finish`."""
    return open_index(address, "write", digest, dim, say, background=False)


def finish(index: Index) -> None:
    if isinstance(index, LocalIndex):
        index.compact()


def rearrange(address: str, kind: str | None, recall: float | None, say: Say) -> Manifest:
    """`couce index compact`."""
    if is_remote(address):
        raise CouceError(f"{address} is in Milvus, which compacts by itself; this is for folders")
    if kind is not None:
        check_type(kind)
    if not (Path(address) / CATALOG).exists():
        raise CouceError(f"there is no index in {address}; `couce index build` makes one")
    with LocalIndex(Path(address), "write", say=say, background=False) as index:
        now = index.structure()
        wanted = Structure(asked=kind or now.asked, recall=recall or now.recall)
        return index.compact(wanted)


def verified(address: str) -> list[str]:
    """`couce index verify`."""
    if is_remote(address):
        raise CouceError(
            f"{address} is in Milvus, which keeps its own checksums; this is for folders"
        )
    with LocalIndex(Path(address)) as index:
        return index.faults()
