from pathlib import Path
from typing import Annotated

import typer


def demo(
    out: Annotated[Path, typer.Option(help="Where to put pictures and runs.")] = Path("demo"),
    epochs: Annotated[int | None, typer.Option(min=1, help="Epochs of each training.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the trainings.")] = 0,
) -> None:
    """Walk the road on the embedded data set."""
    from rich.console import Console

    from couce.train.command import metrics_table
    from couce.train.demo import run_demo

    console = Console(highlight=False, markup=False)
    results = run_demo(out, epochs, seed, console.print)
    console.print("Unseen classes, before any background and in any light (%):")
    console.print(metrics_table(results))
    console.print("One run of each, one seed: that shows the road, not which of the two is better.")
    console.print("Next: couce train PATH, on your own pictures in a folder for each class")
