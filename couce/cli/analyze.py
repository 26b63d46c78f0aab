from pathlib import Path
from typing import Annotated

import typer

analyze = typer.Typer(
    no_args_is_help=True, help="Studies: tables and figures of the paper.", rich_markup_mode=None
)

_PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True}


@analyze.command(context_settings=_PASS_ON)
def ablation(
    context: typer.Context,
    dataset: Annotated[
        str, typer.Argument(help="What to train on, as `couce train` has it.")
    ] = "demo",
    methods: Annotated[str, typer.Option(help="Which, with commas.")] = "base,odba,msrci,couce",
    seeds: Annotated[int, typer.Option(min=1, help="How many.")] = 3,
    over: Annotated[
        list[str] | None,
        typer.Option(help="key=a,b: a setting, or confounding, to go through. Repeatable."),
    ] = None,
    data: Annotated[Path | None, typer.Option(help="Where the set is, unless data/NAME.")] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Runs at the same time.")] = 1,
    out: Annotated[Path, typer.Option(help="Where to keep the runs.")] = Path("studies"),
) -> None:
    """Train several methods over several seeds. Further options go to `couce train`."""
    from rich.console import Console

    from couce.errors import CouceError
    from couce.train.analysis.ablation import ablation as study
    from couce.train.analysis.ablation import spread_table

    if dataset.startswith("-"):
        raise CouceError(f"say what to train on before {dataset}, such as demo")
    console = Console(highlight=False, markup=False)
    rows = study(
        [dataset, *(["--data", str(data)] if data else [])],
        context.args,
        methods.split(","),
        seeds,
        over or [],
        out,
        jobs,
        lambda line: console.print(line, soft_wrap=True),
    )
    console.print(spread_table(rows))
    console.print(
        f"Last epochs, {seeds} seeds, run by run in {out / 'ablation.json'}.", soft_wrap=True
    )


@analyze.command()
def confounding(
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs on the demo set.")],
) -> None:
    """Say what embeddings of the demo set are made of, and what ODBA's gate selects."""
    from rich.console import Console
    from rich.table import Table

    from couce.train.analysis.confounding import FACTORS, analyse

    table = Table(
        title="Share of variance (%), and the gate's correlation with it", show_lines=True
    )
    for column in ("run", "half", *FACTORS, "gate", "gradients / base loss's"):
        table.add_column(column, overflow="fold")
    for run in runs:
        found = analyse(run)
        gate = "" if found.gate is None else " ".join(f"{value:.2f}" for value in found.gate)
        gradients = " ".join(f"{n} {v:.4f}" for n, v in found.gradients.items() if n != "dml")
        for half, explained in (("train", found.train), ("test", found.test)):
            cells = [
                f"{100 * explained.shares[factor]:.0f}"
                + ("" if explained.gate is None else f" ({explained.gate[factor]:+.2f})")
                for factor in FACTORS
            ]
            last = (gate, gradients) if half == "train" else ("", "")
            table.add_row(run.name if half == "train" else "", half, *cells, *last)
    Console(highlight=False, markup=False).print(table)
