from pathlib import Path
from typing import Annotated

import typer

from couce.cli.embed import Preparation, prepared

index = typer.Typer(
    no_args_is_help=True, help="Build, keep and search a gallery.", rich_markup_mode=None
)

_Address = Annotated[
    str, typer.Argument(metavar="INDEX", help="A folder, or milvus+http://host:19530/name.")
]
_AddressOption = Annotated[
    str, typer.Option("--index", help="A folder, or milvus+http://host:19530/name.")
]
_Model = Annotated[Path, typer.Option(help="The model that embeds, from `couce export`.")]
_Provider = Annotated[str, typer.Option(help="auto, cuda, tensorrt or cpu.")]
_Filter = Annotated[
    list[str] | None,
    typer.Option("--filter", help="label=x, id=x or metadata.KEY=x. Repeatable."),
]


@index.command()
def build(
    gallery: Annotated[Path, typer.Argument(help="A folder of images; its folders are labels.")],
    model: _Model = Path("model.onnx"),
    out: Annotated[str, typer.Option(help="The folder of the index.")] = "index",
    to: Annotated[str | None, typer.Option(help="Milvus instead: milvus+http://host/name.")] = None,
    labels: Annotated[
        Path | None, typer.Option(help="A CSV list: path, label, perhaps id; others are metadata.")
    ] = None,
    kind: Annotated[
        str | None,
        typer.Option("--type", help="auto, flat, hnsw, ivf, ivfpq or a FAISS factory string."),
    ] = None,
    recall: Annotated[
        float | None,
        typer.Option(min=0.5, max=0.9999, help="To be reached at 10; 0.99 unless said."),
    ] = None,
    shard: Annotated[str | None, typer.Option(help="i/n: only this part of the files.")] = None,
    prune: Annotated[bool, typer.Option("--prune", help="Drop files that are gone.")] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit with 1 if a file cannot be read.")
    ] = False,
    engine: Annotated[str, typer.Option(help="here, or ray: on a Ray cluster.")] = "here",
    provider: _Provider = "auto",
    preparation: Preparation = None,
) -> None:
    """Index a folder of images, or bring its index up to date."""
    from couce.index.command import run_build

    address = to or out
    summary = run_build(
        gallery,
        model,
        address,
        labels,
        kind,
        recall,
        shard,
        prune,
        engine,
        provider,
        prepared(preparation),
    )
    options = "" if address == "index" else f" --index {address}"
    options += "" if model == Path("model.onnx") else f" --model {model}"
    typer.echo(f"Next: couce serve{options}, or couce index search IMAGE{options}")
    if strict and summary.faults:
        raise typer.Exit(1)


@index.command()
def add(
    images: Annotated[list[Path], typer.Argument(help="Image files.")],
    model: _Model = Path("model.onnx"),
    address: _AddressOption = "index",
    label: Annotated[str | None, typer.Option(help="Of all of them.")] = None,
    metadata: Annotated[
        list[str] | None, typer.Option("--metadata", help="KEY=VALUE. Repeatable.")
    ] = None,
    provider: _Provider = "auto",
    preparation: Preparation = None,
) -> None:
    """Add images."""
    from couce.errors import CouceError
    from couce.index.command import run_add

    pairs = [text.partition("=") for text in metadata or []]
    if any(not equals for _, equals, _ in pairs):
        raise CouceError("metadata is written KEY=VALUE")
    values = {key: value for key, _, value in pairs}
    for id in run_add(images, model, address, label, values, provider, prepared(preparation)):
        typer.echo(id)
    typer.echo(f"Added to {address}. Next: couce index search IMAGE")


@index.command()
def remove(
    ids: Annotated[list[str] | None, typer.Argument(help="Ids of items.")] = None,
    address: _AddressOption = "index",
    chosen: _Filter = None,
) -> None:
    """Remove items, by their ids or by a filter."""
    from couce.errors import CouceError
    from couce.index import open_index
    from couce.index.filters import parse

    if bool(ids) == bool(chosen):
        raise CouceError("say what to remove: ids, or a --filter")
    open_index(address).close()  # a writer would make one where there is none
    with open_index(address, "write", say=_warn) as found:
        names = list(ids or [])
        if chosen:
            names = [item.id for item in found.items(0, len(found), parse(chosen))]
        removed = found.remove(names)
    typer.echo(f"{removed} removed from {address}. Next: couce index info {address}")


@index.command()
def info(address: _Address = "index") -> None:
    """Say what an index holds."""
    from couce.index import open_index

    with open_index(address, say=_warn) as found:
        facts = found.info()
    width = max(len(name) for name in facts)
    for name, fact in facts.items():
        typer.echo(typer.style(f"{name:<{width}}", bold=True) + f"  {fact}")


@index.command()
def search(
    image: Annotated[Path, typer.Argument(help="An image file.")],
    model: _Model = Path("model.onnx"),
    address: _AddressOption = "index",
    k: Annotated[int, typer.Option("-k", min=1, help="How many to find.")] = 10,
    offset: Annotated[int, typer.Option(min=0, help="How many of the first to leave out.")] = 0,
    chosen: _Filter = None,
    grid: Annotated[Path | None, typer.Option(help="A picture of query and hits to draw.")] = None,
    provider: _Provider = "auto",
    preparation: Preparation = None,
) -> None:
    """Find the images that are nearest to one."""
    from rich.console import Console

    from couce.embedder import Embedder
    from couce.index import open_index
    from couce.index.command import hits_table
    from couce.index.filters import parse

    embedder = Embedder(model, provider=provider, preprocess=prepared(preparation))
    with open_index(address, model_hash=embedder.hash, dim=embedder.dim, say=_warn) as found:
        (hits,) = found.search(embedder.embed([image]), k, parse(chosen or []), offset)
    Console(highlight=False, markup=False).print(hits_table(hits))
    if grid is not None:
        from couce.index.grid import draw_grid

        draw_grid(image, hits).save(grid)
        typer.echo(f"Drawn to {grid}.")


@index.command()
def duplicates(
    address: _Address = "index",
    threshold: Annotated[float, typer.Option(min=-1, max=1, help="Least cosine.")] = 0.98,
) -> None:
    """List images that are nearly the same."""
    from couce.index import open_index
    from couce.index.command import printable
    from couce.index.duplicates import near_duplicates

    pairs = 0
    with open_index(address, say=_warn) as found:
        for item in found.every_item():
            if len(item.paths) > 1:
                typer.echo("same    " + "  ".join(printable(path) for path in item.paths))
        for pair in near_duplicates(found, threshold):
            names = [printable(i.paths[0] if i.paths else i.id) for i in (pair.first, pair.second)]
            typer.echo(f"{pair.score:.4f}  {names[0]}  {names[1]}")
            pairs += 1
    typer.echo(f"{pairs} pairs with a cosine of at least {threshold}.")


@index.command("export")
def export_(
    file: Annotated[Path, typer.Argument(help="A .parquet or .npz file to write.")],
    address: _AddressOption = "index",
) -> None:
    """Write all items and vectors to a file."""
    from couce.index import open_index
    from couce.index.report import Report
    from couce.index.transfer import export_file

    with open_index(address, say=_warn) as found, Report("items") as report:
        written = export_file(found, file, report.progress)
    typer.echo(f"{written} items in {file}. Next: couce index import {file} --index OTHER")


@index.command("import")
def import_(
    file: Annotated[Path, typer.Argument(help="What `couce index export` wrote.")],
    address: _AddressOption = "index",
) -> None:
    """Add all items of a file, with their vectors."""
    from couce.index.command import finish, opened_for
    from couce.index.report import Report
    from couce.index.transfer import import_file, model_of

    with opened_for(address, *model_of(file), _warn) as found, Report("items") as report:
        done = import_file(found, file, report.progress)
        finish(found)
    typer.echo(f"{done} items added to {address}. Next: couce index info {address}")


@index.command()
def copy(
    source: Annotated[str, typer.Argument(help="The index to copy from.")],
    target: Annotated[str, typer.Argument(help="The index to copy to.")],
) -> None:
    """Copy all items to another index, also between folders and Milvus."""
    _join([source], target, join=False)


@index.command()
def merge(
    target: Annotated[str, typer.Argument(help="The index to put them all into.")],
    sources: Annotated[list[str], typer.Argument(help="The indexes to take them from.")],
) -> None:
    """Join indexes, say of the shards of a gallery."""
    _join(sources, target, join=True)


@index.command()
def compact(
    address: _Address = "index",
    kind: Annotated[
        str | None,
        typer.Option("--type", help="auto, flat, hnsw, ivf, ivfpq or a FAISS factory string."),
    ] = None,
    recall: Annotated[
        float | None, typer.Option(min=0.5, max=0.9999, help="To be reached at 10.")
    ] = None,
) -> None:
    """Arrange everything anew for search."""
    from couce.index.command import measured_line, rearrange

    manifest = rearrange(address, kind, recall, _warn)
    typer.echo(measured_line(manifest.structure))
    typer.echo(f"{manifest.count} items. Next: couce index search IMAGE")


@index.command()
def verify(address: _Address = "index") -> None:
    """Read everything and compare it with its checksums."""
    from couce.index.command import verified

    faults = verified(address)
    for fault in faults:
        typer.echo(f"fault: {fault}")
    if faults:
        raise typer.Exit(1)
    typer.echo("All of it is as it was written.")


@index.command()
def plan(
    vectors: Annotated[float, typer.Option(min=1, help="How many, as 1e9.")],
    dim: Annotated[int, typer.Option(min=1, help="Of an embedding.")] = 512,
    memory: Annotated[float, typer.Option(min=1, help="GB of a machine.")] = 64,
    rate: Annotated[float, typer.Option(help="Images/s that a worker embeds.")] = 100,
) -> None:
    """Say which type of index, how much memory and how many machines a gallery takes."""
    from rich.console import Console
    from rich.table import Table

    from couce.index.plan import gigabytes
    from couce.index.plan import plan as make

    found = make(vectors, dim, memory * 1e9, rate)
    table = Table("type", "Milvus", "memory, formula", "memory", "machines")
    for option in found.options:
        mark = " *" if option is found.chosen else ""
        size = gigabytes(option.bytes)
        table.add_row(option.type + mark, option.milvus, option.formula, size, str(option.machines))
    console = Console(highlight=False, markup=False)
    console.print(f"n = {vectors:,.0f} vectors, d = {dim} dimensions of 4 bytes")
    console.print(table)
    for line in found.advice:
        console.print(f"- {line}", soft_wrap=True)


def _join(sources: list[str], target: str, join: bool) -> None:
    from couce.index import open_index
    from couce.index.command import finish, opened_for
    from couce.index.report import Report
    from couce.index.transfer import copy as run

    done = 0
    with Report("items") as report:
        for source in sources:
            with (
                open_index(source, say=report.say) as taken,
                opened_for(target, taken.model_hash, taken.dim, report.say) as found,
            ):
                done += run(taken, found, join, report.progress)
                if source == sources[-1]:
                    finish(found)
    typer.echo(f"{done} items copied to {target}. Next: couce index info {target}")


def _warn(line: str) -> None:
    typer.echo(line, err=True)
