from pathlib import Path
from typing import Annotated

import typer

from couce.cli.shared.options import DataFolder, Plugins

data = typer.Typer(
    no_args_is_help=True, help="Download and check data sets.", rich_markup_mode=None
)


@data.command()
def get(
    name: Annotated[str, typer.Argument(help="The data set to download: cub or sop.")],
    data_folder: DataFolder = None,
) -> None:
    """Download a data set, verify its checksum and unpack it."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn

    from couce.data.download import get as download

    target = data_folder or Path("data") / name
    with Progress(BarColumn(), DownloadColumn(), TimeRemainingColumn()) as bar:
        task = bar.add_task(name, total=None)
        download(
            name, target, lambda done, total: bar.update(task, completed=done, total=total or None)
        )
    typer.echo(f"{name} is in {target}. Next: couce data check {name}")


@data.command()
def check(
    name: Annotated[
        str,
        typer.Argument(
            help="The data set: cub, cars, sop, demo, a folder of class folders, or a CSV list."
        ),
    ],
    data_folder: DataFolder = None,
    plugin: Plugins = None,
) -> None:
    """Count the classes and images of a data set, and decode every image."""
    from rich.progress import track

    from couce.data import open_dataset
    from couce.data.check import file_faults
    from couce.plugins import load_plugins

    load_plugins(plugin or ())
    found = open_dataset(name, data_folder)
    images = len(found.train.paths) + len(found.test.paths)
    typer.echo(f"{name} in {found.root}: train {found.train.counts}; test {found.test.counts}")
    faults = found.count_faults()
    for fault in track(file_faults(found), "opening", total=images, transient=True):
        if fault is not None:
            faults.append(fault.reason)
    for line in faults:
        typer.echo(f"fault: {line}")
    if faults:
        raise typer.Exit(1)
    typer.echo(f"Nothing is missing, and every image can be decoded. Next: couce train {name}")
