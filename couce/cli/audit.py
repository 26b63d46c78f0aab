from pathlib import Path
from typing import Annotated

import typer

from couce.cli.shared.options import (
    Confounding,
    DataFolder,
    MaskModel,
    Masks,
    Plugins,
    PreprocessOption,
    Seed,
    TrainClasses,
    parse_preprocess,
)


def audit(
    arguments: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL... [DATASET]",
            help="Models (checkpoints, ONNX files or folders of runs) and the data set."
            " [default data set: demo]",
        ),
    ],
    data: DataFolder = None,
    train_classes: TrainClasses = None,
    confounding: Confounding = 0.9,
    limit: Annotated[int, typer.Option(min=2, help="The largest number of query images.")] = 500,
    gallery: Annotated[
        int,
        typer.Option(min=4, help="About how many images to search in. Whole classes are taken."),
    ] = 6000,
    size: Annotated[
        int, typer.Option(min=16, help="The shorter side of the changed images, in pixels.")
    ] = 256,
    masks: Masks = None,
    mask_model: MaskModel = None,
    protocol: Annotated[
        str,
        typer.Option(
            help="What is measured: queries (each query is changed in many ways) or background-bias"
            " (all images are put before other backgrounds)."
        ),
    ] = "queries",
    backgrounds: Annotated[
        Path | None,
        typer.Option(
            help="For background-bias: a folder of images of backgrounds. [default: the backgrounds"
            " of other classes]"
        ),
    ] = None,
    drawings: Annotated[
        int, typer.Option(min=1, help="For background-bias: how often backgrounds are drawn.")
    ] = 5,
    count_colour: Annotated[
        bool,
        typer.Option("--count-colour", help="Also count saturation, hue and grey as nuisances."),
    ] = False,
    seed: Seed = 0,
    preprocess: PreprocessOption = None,
    plugin: Plugins = None,
    out: Annotated[
        Path, typer.Option(help="The folder for the results: images, a JSON file and report.html.")
    ] = Path("analysis"),
) -> None:
    """Measure how much retrieval depends on the background.

    Light, framing and sharpness are measured as well.
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    from couce.audit import audit as run
    from couce.cli.analyze import finish
    from couce.errors import CouceError
    from couce.models.paths import is_model
    from couce.plugins import load_plugins

    load_plugins(plugin or ())
    models = [text for text in arguments if is_model(text)]
    datasets = [text for text in arguments if not is_model(text)]
    if not models:
        raise CouceError(
            f"{' '.join(arguments)} names no model; give a .pt or .onnx file or the folder of a run"
        )
    if len(datasets) > 1:
        raise CouceError(
            f"an audit takes one data set, and these are not models: {', '.join(datasets)}"
        )
    console = Console(highlight=False, markup=False)
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:.0f}/{task.total:.0f}"),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as bar:
        task = bar.add_task("gallery", total=1)
        section = run(
            models,
            datasets[0] if datasets else "demo",
            data=data,
            train_classes=train_classes,
            confounding=confounding,
            limit=limit,
            gallery=gallery,
            size=size,
            masks=masks,
            mask_model=mask_model,
            protocol=protocol,
            backgrounds=backgrounds,
            drawings=drawings,
            count_colour=count_colour,
            seed=seed,
            preprocess=parse_preprocess(preprocess),
            progress=lambda what, done, total: bar.update(
                task, description=what, completed=done, total=total
            ),
        )
    finish(section, out)
