from pathlib import Path
from typing import Annotated

import typer

from couce.cli.shared.options import DataFolder, Plugins, TrainClasses


def train(
    dataset: Annotated[
        str, typer.Argument(help="cub, cars, sop, demo, a folder of class folders, or a CSV list.")
    ] = "demo",
    method: Annotated[
        str,
        typer.Option(
            help="What is added to the base loss: base (nothing), odba, msrci, odba+msrci, couce or"
            " couce-plus."
        ),
    ] = "couce",
    preset: Annotated[
        str, typer.Option(help="paper, or cpu: a smaller backbone, smaller images, fewer epochs.")
    ] = "paper",
    config: Annotated[Path | None, typer.Option(help="A TOML file of settings.")] = None,
    assign: Annotated[
        list[str] | None,
        typer.Option("--set", help="One setting, such as odba.capacity=4096. Repeatable."),
    ] = None,
    loss: Annotated[str | None, typer.Option(help="The base loss. [default: proxy-an]")] = None,
    backbone: Annotated[
        str | None, typer.Option(help="The backbone. [default: the preset's]")
    ] = None,
    weights: Annotated[
        str | None,
        typer.Option(
            help="Starting weights: pretrained, none (random), or a file. [default: pretrained]"
        ),
    ] = None,
    epochs: Annotated[
        int | None, typer.Option(help="Number of epochs. [default: the preset's]")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Seed of all random numbers. [default: 0]")
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="Where to train: auto, cpu or cuda. [default: auto]")
    ] = None,
    cache: Annotated[
        str | None, typer.Option(help="Where to keep decoded images: none, ram or disk.")
    ] = None,
    validate_classes: Annotated[
        float | None,
        typer.Option(help="Share of the training classes held out to choose the best epoch."),
    ] = None,
    data: DataFolder = None,
    train_classes: TrainClasses = None,
    confounding: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=1,
            help="Share of the demo set's training pictures in their class's surroundings."
            " [default: 0.9]",
        ),
    ] = None,
    allow_missing: Annotated[
        bool,
        typer.Option("--allow-missing", help="Train although images of a known set are missing."),
    ] = False,
    plugin: Plugins = None,
    out: Annotated[
        Path | None, typer.Option(help="The folder of the run. [default: runs/NAME-N]")
    ] = None,
    resume: Annotated[
        Path | None, typer.Option(help="The folder of a run that was interrupted, to continue it.")
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
    if run.metrics:  # the leading process of several
        console = Console(highlight=False, markup=False)
        console.print(metrics_table(run.metrics))
        options = "" if data is None else f" --data {data}"
        options += "" if train_classes is None else f" --train-classes {train_classes}"
        options += "" if confounding is None else f" --confounding {confounding:g}"
        console.print(f"Next: couce evaluate {run.best} {dataset}{options}", soft_wrap=True)
