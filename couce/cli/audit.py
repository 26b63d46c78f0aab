from pathlib import Path
from typing import Annotated

import typer

from couce.cli.embed import Preparation, prepared


def audit(
    arguments: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL... [DATASET]",
            help="Checkpoints (.pt), ONNX models or folders of runs; then the set, demo unless said.",
        ),
    ],
    data: Annotated[Path | None, typer.Option(help="Where the set is, unless data/NAME.")] = None,
    train_classes: Annotated[
        int | None, typer.Option(help="Of a folder without halves: how many classes train.")
    ] = None,
    confounding: Annotated[float, typer.Option(min=0, max=1, help="Of the demo set.")] = 0.9,
    limit: Annotated[int, typer.Option(min=2, help="Queries at most.")] = 500,
    gallery: Annotated[
        int, typer.Option(min=4, help="About how many images to search in, of whole classes.")
    ] = 6000,
    size: Annotated[
        int, typer.Option(min=16, help="Pixels of the shorter side at which pictures are changed.")
    ] = 256,
    masks: Annotated[
        Path | None, typer.Option(help="Object masks, CLASS/NAME.png, if the set has none.")
    ] = None,
    count_colour: Annotated[
        bool, typer.Option("--count-colour", help="Saturation, hue and grey are nuisances too.")
    ] = False,
    seed: Annotated[int, typer.Option(min=0, help="Start of all random numbers.")] = 0,
    preparation: Preparation = None,
    out: Annotated[
        Path, typer.Option(help="Where to write pictures, figures and report.html.")
    ] = Path("analysis"),
) -> None:
    """Measure how far retrieval hangs on light, frame, sharpness and background."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    from couce.cli.analyze import finish
    from couce.train.analysis.audit_command import run_audit

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
        section = run_audit(
            arguments,
            data,
            train_classes,
            confounding,
            prepared(preparation),
            masks,
            count_colour,
            limit=limit,
            gallery=gallery,
            size=size,
            seed=seed,
            advance=lambda what, done, total: bar.update(
                task, description=what, completed=done, total=total
            ),
        )
    finish(section, out)
