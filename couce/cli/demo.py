from pathlib import Path
from typing import Annotated

import typer


def demo(
    out: Annotated[Path, typer.Option(help="Where to put the pictures.")] = Path("demo"),
    epochs: Annotated[int, typer.Option(min=1, help="Epochs of each training.")] = 10,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the trainings.")] = 0,
) -> None:
    """Walk the road on the embedded data set."""
    from rich.console import Console
    from rich.table import Table

    from couce.train.demo import run_demo

    console = Console(highlight=False, markup=False)
    results = run_demo(out, epochs, seed, console.print)
    table = Table(title="Unseen classes, any background and light (%)")
    table.add_column("")
    for metric in next(iter(results.values())):
        table.add_column(metric, justify="right")
    for name, metrics in results.items():
        table.add_row(name, *(f"{100 * value:.1f}" for value in metrics.values()))
    console.print(table)
    console.print("One short run: docs/results.md tells what repeated ones show.")
    console.print("Next: couce doctor says what else this machine can do.")
