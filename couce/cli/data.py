from pathlib import Path
from typing import Annotated

import typer

data = typer.Typer(no_args_is_help=True, help="Get and check data sets.", rich_markup_mode=None)

_Where = Annotated[Path | None, typer.Option("--data", help="Where the set is, unless data/NAME.")]


@data.command()
def get(
    name: Annotated[str, typer.Argument(help="cub or sop.")],
    where: _Where = None,
) -> None:
    """Download a set, check it and unpack it."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn

    from couce.train.data.download import get as download

    target = where or Path("data") / name
    with Progress(BarColumn(), DownloadColumn(), TimeRemainingColumn()) as bar:
        task = bar.add_task(name, total=None)
        download(
            name, target, lambda done, total: bar.update(task, completed=done, total=total or None)
        )
    typer.echo(f"{name} is in {target}. Next: couce data check {name}")


@data.command()
def check(
    name: Annotated[str, typer.Argument(help="cub, cars, sop, demo, or a folder or CSV list.")],
    where: _Where = None,
) -> None:
    """Count classes and images, and open every file."""
    from rich.progress import track

    from couce.train.data import open_dataset
    from couce.train.data.check import count_faults, file_faults

    found = open_dataset(name, where)
    images = len(found.train.paths) + len(found.test.paths)
    typer.echo(f"{name} in {found.root}: train {found.train.counts}; test {found.test.counts}")
    faults = count_faults(found)
    for fault in track(file_faults(found), "opening", total=images, transient=True):
        if fault is not None:
            faults.append(fault.reason)
    for line in faults:
        typer.echo(f"fault: {line}")
    if faults:
        raise typer.Exit(1)
    typer.echo(f"All of it is there and can be opened. Next: couce train {name}")
