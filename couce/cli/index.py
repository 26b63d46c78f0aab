"""`couce index`: builds, changes and searches the index of a gallery."""

from pathlib import Path
from typing import Annotated

import typer

from couce.cli.shared.options import Filter, Model, PreprocessOption, Provider, parse_preprocess

index = typer.Typer(
    no_args_is_help=True,
    help="Build, change and search the index of a gallery.",
    rich_markup_mode=None,
)

_Address = Annotated[
    str,
    typer.Argument(metavar="INDEX", help="The index: a folder, or milvus+http://host:19530/name."),
]
_AddressOption = Annotated[
    str, typer.Option("--index", help="The index: a folder, or milvus+http://host:19530/name.")
]
_Type = Annotated[
    str | None,
    typer.Option(
        "--type",
        help="The search structure: auto, flat, hnsw, ivf, ivfpq or a factory string of FAISS."
        " [default: the present one, or auto for a new index]",
    ),
]
_Recall = Annotated[
    float | None,
    typer.Option(
        min=0.5,
        max=0.9999,
        help="The recall@10 that the search must reach."
        " [default: the present one, or 0.99 for a new index]",
    ),
]


@index.command()
def build(
    gallery: Annotated[
        Path,
        typer.Argument(help="A folder of images. The names of its class folders become labels."),
    ],
    model: Model = Path("model.onnx"),
    out: Annotated[
        str, typer.Option(help="The folder of the index, which is created if necessary.")
    ] = "index",
    to: Annotated[
        str | None,
        typer.Option(
            help="Build the index in a Milvus collection instead of a folder:"
            " milvus+http://host:19530/name."
        ),
    ] = None,
    labels: Annotated[
        Path | None,
        typer.Option(
            help="A CSV file with the columns path and label, and optionally id. All other columns"
            " become metadata."
        ),
    ] = None,
    kind: _Type = None,
    recall: _Recall = None,
    shard: Annotated[
        str | None,
        typer.Option(help="Index only part i of n of the files, such as 2/3."),
    ] = None,
    prune: Annotated[
        bool, typer.Option("--prune", help="Remove items whose files are gone.")
    ] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit with code 1 if a file cannot be read.")
    ] = False,
    engine: Annotated[
        str,
        typer.Option(help="Where images are embedded: here (this machine) or ray (a Ray cluster)."),
    ] = "here",
    provider: Provider = "auto",
    preprocess: PreprocessOption = None,
) -> None:
    """Build the index of a folder of images, or bring it up to date."""
    from couce.index.commands import build_index

    address = to or out
    summary = build_index(
        gallery,
        model,
        address,
        labels=labels,
        kind=kind,
        recall=recall,
        shard=shard,
        prune=prune,
        engine=engine,
        provider=provider,
        preprocess=parse_preprocess(preprocess),
    )
    options = "" if address == "index" else f" --index {address}"
    options += "" if model == Path("model.onnx") else f" --model {model}"
    options += "".join(f" --preprocess {each}" for each in preprocess or ())
    typer.echo(f"Next: couce serve{options}, or couce index search IMAGE{options}")
    if strict and summary.faults:
        raise typer.Exit(1)


@index.command()
def add(
    images: Annotated[list[Path], typer.Argument(help="Image files to add.")],
    model: Model = Path("model.onnx"),
    address: _AddressOption = "index",
    label: Annotated[str | None, typer.Option(help="The label of all these images.")] = None,
    metadata: Annotated[
        list[str] | None,
        typer.Option("--metadata", help="Metadata of all these images, as KEY=VALUE. Repeatable."),
    ] = None,
    provider: Provider = "auto",
    preprocess: PreprocessOption = None,
) -> None:
    """Add single images to an index."""
    from couce.errors import CouceError
    from couce.index.commands import add_images

    pairs = [text.partition("=") for text in metadata or []]
    if any(not equals for _, equals, _ in pairs):
        raise CouceError("write --metadata as KEY=VALUE, as in --metadata year=2024")
    values = {key: value for key, _, value in pairs}
    added = add_images(
        images,
        model,
        address,
        label=label,
        metadata=values,
        provider=provider,
        preprocess=parse_preprocess(preprocess),
    )
    for id in added:
        typer.echo(id)
    typer.echo(f"Added to {address}. Next: couce index search IMAGE")


@index.command()
def remove(
    ids: Annotated[list[str] | None, typer.Argument(help="Ids of the items to remove.")] = None,
    address: _AddressOption = "index",
    chosen: Filter = None,
) -> None:
    """Remove items from an index, by their ids or by a filter."""
    from couce.errors import CouceError
    from couce.index import open_index
    from couce.index.filters import parse

    if bool(ids) == bool(chosen):
        raise CouceError("say what to remove: give ids or a --filter, but not both")
    # A writer would create an index that does not exist. A reader raises an error.
    open_index(address).close()
    with open_index(address, "write") as found:
        names = list(ids or [])
        if chosen:
            names = [item.id for item in found.items(0, len(found), parse(chosen))]
        removed = found.remove(names)
    typer.echo(f"{removed} removed from {address}. Next: couce index info {address}")


@index.command()
def info(address: _Address = "index") -> None:
    """Show facts about an index, such as its number of items and its model."""
    from couce.index import open_index

    with open_index(address) as found:
        facts = found.info()
    width = max(len(name) for name in facts)
    for name, fact in facts.items():
        typer.echo(typer.style(f"{name:<{width}}", bold=True) + f"  {fact}")


@index.command()
def search(
    image: Annotated[Path, typer.Argument(help="The image to search with.")],
    model: Model = Path("model.onnx"),
    address: _AddressOption = "index",
    k: Annotated[int, typer.Option("-k", min=1, help="How many hits to show.")] = 10,
    offset: Annotated[int, typer.Option(min=0, help="How many of the first hits to skip.")] = 0,
    chosen: Filter = None,
    grid: Annotated[
        Path | None, typer.Option(help="Draw the query and its hits into this image file.")
    ] = None,
    provider: Provider = "auto",
    preprocess: PreprocessOption = None,
) -> None:
    """Find the images of an index that are nearest to an image."""
    from rich.console import Console

    from couce.cli.shared.tables import hits_table
    from couce.embedder import Embedder
    from couce.index import open_index
    from couce.index.filters import parse

    embedder = Embedder(model, provider=provider, preprocess=parse_preprocess(preprocess))
    with open_index(address, model_hash=embedder.hash, dim=embedder.dim) as found:
        (hits,) = found.search(embedder.embed([image]), k, parse(chosen or []), offset)
    Console(highlight=False, markup=False).print(hits_table(hits))
    if grid is not None:
        from couce.index.grid import draw_grid

        draw_grid(image, hits).save(grid)
        typer.echo(f"Drawn to {grid}.")


@index.command()
def duplicates(
    address: _Address = "index",
    threshold: Annotated[
        float,
        typer.Option(min=-1, max=1, help="List only pairs with at least this cosine."),
    ] = 0.98,
) -> None:
    """List files with the same bytes, and pairs of images that are nearly the same."""
    from couce.files import printable
    from couce.index import open_index
    from couce.index.duplicates import near_duplicates

    pairs = 0
    with open_index(address) as found:
        for item in found.every_item():
            if len(item.paths) > 1:
                typer.echo("same    " + "  ".join(printable(path) for path in item.paths))
        for pair in near_duplicates(found, threshold):
            names = [printable(i.paths[0] if i.paths else i.id) for i in (pair.first, pair.second)]
            typer.echo(f"{pair.score:.4f}  {names[0]}  {names[1]}")
            pairs += 1
    typer.echo(f"{pairs} pairs have a cosine of at least {threshold}.")


@index.command("export")
def export_(
    file: Annotated[Path, typer.Argument(help="The .parquet or .npz file to write.")],
    address: _AddressOption = "index",
) -> None:
    """Write all items of an index, with their vectors, to a file."""
    from couce.index import open_index
    from couce.index.progress import ProgressBar
    from couce.index.transfer import export_file

    with open_index(address) as found, ProgressBar("items") as bar:
        written = export_file(found, file, bar.update)
    typer.echo(f"{written} items written to {file}. Next: couce index import {file} --index OTHER")


@index.command("import")
def import_(
    file: Annotated[Path, typer.Argument(help="A file that `couce index export` wrote.")],
    address: _AddressOption = "index",
) -> None:
    """Add all items of an exported file, with their vectors, to an index."""
    from couce.index.commands import finish, opened_for
    from couce.index.progress import ProgressBar
    from couce.index.transfer import import_file, model_of

    with opened_for(address, *model_of(file)) as found, ProgressBar("items") as bar:
        done = import_file(found, file, bar.update)
        finish(found)
    typer.echo(f"{done} items added to {address}. Next: couce index info {address}")


@index.command()
def copy(
    source: Annotated[str, typer.Argument(help="The index to copy from.")],
    target: Annotated[str, typer.Argument(help="The index to copy to.")],
) -> None:
    """Copy all items to another index. Both may be folders or Milvus collections."""
    _join([source], target, join=False)


@index.command()
def merge(
    target: Annotated[str, typer.Argument(help="The index that receives the items of all others.")],
    sources: Annotated[list[str], typer.Argument(help="The indexes to merge into it.")],
) -> None:
    """Merge several indexes into one, such as those of the shards of a gallery."""
    _join(sources, target, join=True)


@index.command()
def compact(
    address: _Address = "index",
    kind: _Type = None,
    recall: _Recall = None,
) -> None:
    """Rebuild the search structure of an index from all its items."""
    from couce.index.commands import measured_line, rearrange

    manifest = rearrange(address, kind, recall)
    typer.echo(measured_line(manifest.structure))
    typer.echo(f"{manifest.count} items. Next: couce index search IMAGE")


@index.command()
def verify(address: _Address = "index") -> None:
    """Read the whole index and compare it with its checksums."""
    from couce.index.commands import verified

    faults = verified(address)
    for fault in faults:
        typer.echo(f"fault: {fault}")
    if faults:
        raise typer.Exit(1)
    typer.echo("No faults: all checksums are right.")


@index.command()
def plan(
    vectors: Annotated[float, typer.Option(min=1, help="The number of vectors, such as 1e9.")],
    dim: Annotated[int, typer.Option(min=1, help="The dimension of an embedding.")] = 512,
    memory: Annotated[float, typer.Option(min=1, help="The memory of one machine, in GB.")] = 64,
    rate: Annotated[
        float, typer.Option(help="How many images one worker embeds per second.")
    ] = 100,
) -> None:
    """Show the type of index, the memory and the machines that a gallery needs."""
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
    from couce.index.commands import finish, opened_for
    from couce.index.progress import ProgressBar
    from couce.index.transfer import copy as run

    done = 0
    with ProgressBar("items") as bar:
        for source in sources:
            with (
                open_index(source) as taken,
                opened_for(target, taken.model_hash, taken.dim) as found,
            ):
                done += run(taken, found, join, bar.update)
                if source == sources[-1]:
                    finish(found)
    typer.echo(f"{done} items copied to {target}. Next: couce index info {target}")
