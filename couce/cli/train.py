from pathlib import Path
from typing import Annotated

import typer

from couce.cli.shared.options import DataFolder, Plugins, TrainClasses


def train(
    dataset: Annotated[
        str,
        typer.Argument(
            help="The data set: cub, cars, sop, demo, a folder of class folders, or a CSV list."
        ),
    ] = "demo",
    method: Annotated[
        str,
        typer.Option(
            help="What is added to the base loss: base (nothing), odba, msrci, odba+msrci, couce"
            " couce-plus or bgaugment."
        ),
    ] = "couce",
    preset: Annotated[
        str, typer.Option(help="The preset: paper, or cpu (small backbone and images, few epochs).")
    ] = "paper",
    config: Annotated[Path | None, typer.Option(help="A TOML file with settings.")] = None,
    assign: Annotated[
        list[str] | None,
        typer.Option("--set", help="One setting, such as odba.capacity=4096. Repeatable."),
    ] = None,
    loss: Annotated[
        str | None,
        typer.Option(
            help="The base loss: proxy-an, proxy-anchor, proxy-nca or soft-triple. [default:"
            " proxy-an]"
        ),
    ] = None,
    backbone: Annotated[
        str | None,
        typer.Option(
            help="The backbone: resnet50, resnet18, bn-inception, mobilenet_v2 or tiny. [default:"
            " resnet50; with --preset cpu mobilenet_v2; for demo tiny]"
        ),
    ] = None,
    weights: Annotated[
        str | None,
        typer.Option(
            help="The starting weights: pretrained, none (random), or a file. [default:"
            " pretrained; for demo none]"
        ),
    ] = None,
    epochs: Annotated[
        int | None,
        typer.Option(help="The number of epochs. [default: 80; with --preset cpu 10; for demo 25]"),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="The seed of all random numbers. [default: 0]")
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="The device: auto, cpu or cuda. [default: auto]")
    ] = None,
    cache: Annotated[
        str | None,
        typer.Option(
            help="Where to keep decoded images: none, ram or disk. [default: none; with"
            " --preset cpu and for demo ram]"
        ),
    ] = None,
    validate_classes: Annotated[
        float | None,
        typer.Option(
            help="The share of training classes that are held out to choose the best epoch. With 0,"
            " the test half chooses. [default: 0]"
        ),
    ] = None,
    data: DataFolder = None,
    train_classes: TrainClasses = None,
    confounding: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=1,
            help="For the demo set: the share of training images that show the background and the"
            " light of their class. [default: 0.9]",
        ),
    ] = None,
    allow_missing: Annotated[
        bool,
        typer.Option(
            "--allow-missing", help="Train even if images of a known data set are missing."
        ),
    ] = False,
    plugin: Plugins = None,
    out: Annotated[
        Path | None, typer.Option(help="The folder for the run. [default: runs/NAME-N]")
    ] = None,
    resume: Annotated[
        Path | None, typer.Option(help="The folder of an interrupted run, to continue it.")
    ] = None,
) -> None:
    """Train an embedding network."""
    from rich.console import Console

    from couce.cli.shared.tables import metrics_table
    from couce.train import train as run_training
    from couce.train.settings import parse_assignments

    run = run_training(
        dataset,
        method=method,
        preset=preset,
        config=config,
        settings=parse_assignments(assign or ()),
        loss=loss,
        backbone=backbone,
        weights=weights,
        epochs=epochs,
        seed=seed,
        device=device,
        cache=cache,
        validate_classes=validate_classes,
        data=data,
        train_classes=train_classes,
        confounding=confounding,
        allow_missing=allow_missing,
        plugin=plugin or (),
        out=out,
        resume=resume,
    )
    # With several processes, only the leading one has metrics.
    if run.metrics:
        console = Console(highlight=False, markup=False)
        console.print(metrics_table(run.metrics))
        options = "" if data is None else f" --data {data}"
        options += "" if train_classes is None else f" --train-classes {train_classes}"
        options += "" if confounding is None else f" --confounding {confounding:g}"
        console.print(f"Next: couce evaluate {run.best} {dataset}{options}", soft_wrap=True)
