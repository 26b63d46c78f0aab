from pathlib import Path
from typing import Annotated

import typer


def train(
    dataset: Annotated[
        str, typer.Argument(help="cub, cars, sop, demo, or a folder or CSV list.")
    ] = "demo",
    method: Annotated[
        str, typer.Option(help="base, odba, msrci, odba+msrci, couce or couce-plus.")
    ] = "couce",
    preset: Annotated[str, typer.Option(help="paper, or cpu: lighter in all.")] = "paper",
    config: Annotated[Path | None, typer.Option(help="A TOML file of settings.")] = None,
    assign: Annotated[
        list[str] | None, typer.Option("--set", help="A setting: odba.capacity=4096. Repeatable.")
    ] = None,
    loss: Annotated[str | None, typer.Option(help="The base loss.")] = None,
    backbone: Annotated[str | None, typer.Option(help="The backbone.")] = None,
    weights: Annotated[str | None, typer.Option(help="pretrained, none, or a file.")] = None,
    epochs: Annotated[int | None, typer.Option(help="How many epochs.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Start of all random numbers.")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu or cuda.")] = None,
    cache: Annotated[str | None, typer.Option(help="Decoded images: none, ram or disk.")] = None,
    validate_classes: Annotated[
        float | None, typer.Option(help="Share of training classes that choose the best epoch.")
    ] = None,
    data: Annotated[Path | None, typer.Option(help="Where the set is, unless data/NAME.")] = None,
    train_classes: Annotated[
        int | None, typer.Option(help="Of a folder without halves: how many classes train.")
    ] = None,
    confounding: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=1,
            help="Of the demo set: how far backgrounds tell the class, 0.9 unless said.",
        ),
    ] = None,
    allow_missing: Annotated[
        bool, typer.Option("--allow-missing", help="Train though images are missing.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="The run's folder, unless runs/NAME-N.")] = None,
    resume: Annotated[Path | None, typer.Option(help="A run's folder to go on with.")] = None,
) -> None:
    """Train an embedding."""
    from couce.train.command import run_training
    from couce.train.session import Data

    run_training(
        Data(dataset, data, train_classes, confounding, allow_missing),
        method=method,
        preset=preset,
        config=config,
        assignments=assign or [],
        options={
            "loss": loss,
            "backbone": backbone,
            "weights": weights,
            "epochs": epochs,
            "seed": seed,
            "device": device,
            "cache": cache,
            "validate_classes": validate_classes,
        },
        out=out,
        resume=resume,
    )
