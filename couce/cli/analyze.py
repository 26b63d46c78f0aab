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

    from couce.train.analysis.ablation import ablation as study
    from couce.train.analysis.ablation import spread_table

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
