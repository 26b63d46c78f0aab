from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from couce.train.analysis.section import Section

analyze = typer.Typer(
    no_args_is_help=True, help="Studies: tables and figures of the paper.", rich_markup_mode=None
)

_PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True}

Run = Annotated[Path, typer.Argument(help="The folder of a run, or a checkpoint.")]
Runs = Annotated[list[Path], typer.Argument(help="Folders of runs on one data set.")]
Data = Annotated[
    Path | None, typer.Option(help="Where the run's data set is, unless where it was.")
]
Images = Annotated[int, typer.Option(min=4, help="About how many test images to look at.")]
Seed = Annotated[int, typer.Option(min=0, help="Start of all random numbers.")]
Out = Annotated[Path, typer.Option(help="Where to write pictures, figures and report.html.")]
_OUT = Path("analysis")


def finish(section: "Section", out: Path) -> None:
    """Shows the tables, writes the section and says where."""
    from rich.console import Console

    console = Console(highlight=False, markup=False)
    for table in section.tables:
        console.print(table.to_rich())
    written = section.write(out)
    names = ", ".join(path.name for path in written[:-1])
    console.print(f"Written to {out}: {names}. Next: open {written[-1]}", soft_wrap=True)


@analyze.command(context_settings=_PASS_ON)
def ablation(
    context: typer.Context,
    dataset: Annotated[
        str, typer.Argument(help="What to train on, as `couce train` has it.")
    ] = "demo",
    methods: Annotated[
        str, typer.Option(help="Which, with commas.")
    ] = "base,odba,msrci,odba+msrci,couce",
    seeds: Annotated[int, typer.Option(min=1, help="How many.")] = 3,
    over: Annotated[
        list[str] | None,
        typer.Option(help="key=a,b: a setting, or confounding, to go through. Repeatable."),
    ] = None,
    data: Annotated[Path | None, typer.Option(help="Where the set is, unless data/NAME.")] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Runs at the same time.")] = 1,
    out: Annotated[Path, typer.Option(help="Where to keep the runs.")] = Path("studies"),
    report: Annotated[Path, typer.Option(help="Where to write table and picture.")] = _OUT,
) -> None:
    """Train several methods over several seeds. Further options go to `couce train`."""
    from rich.console import Console

    from couce.errors import CouceError
    from couce.train.analysis.ablation import ablation as study
    from couce.train.analysis.ablation import ablation_section, section_name

    if dataset.startswith("-"):
        raise CouceError(f"say what to train on before {dataset}, such as demo")
    console = Console(highlight=False, markup=False)
    rows, judged = study(
        [dataset, *(["--data", str(data)] if data else [])],
        context.args,
        methods.split(","),
        seeds,
        over or [],
        out,
        jobs,
        lambda line: console.print(line, soft_wrap=True),
    )
    finish(ablation_section(rows, seeds, over or [], judged), report)
    name = section_name(over or [])
    console.print(f"Run by run in {out / f'{name}.json'}.", soft_wrap=True)


@analyze.command()
def confounding(runs: Runs, data: Data = None, out: Out = _OUT) -> None:
    """Say what embeddings of the demo set are made of, and what ODBA's gate selects."""
    from couce.train.analysis.confounding import confounding as analysis
    from couce.train.analysis.runs import open_runs

    finish(analysis(open_runs(runs, data)), out)


@analyze.command()
def fourier(
    run: Run, images: Images = 400, seed: Seed = 0, data: Data = None, out: Out = _OUT
) -> None:
    """Measure what MSRCI changes in amplitude and phase, by ring and schedule."""
    from couce.train.analysis.fourier import fourier as analysis
    from couce.train.analysis.runs import open_run

    finish(analysis(open_run(run, data), images, seed), out)


@analyze.command()
def semantic(
    run: Run, images: Images = 400, seed: Seed = 0, data: Data = None, out: Out = _OUT
) -> None:
    """Measure what MSRCI leaves of the embeddings' meaning, by schedule."""
    from couce.train.analysis.runs import open_run
    from couce.train.analysis.semantic import semantic as analysis

    finish(analysis(open_run(run, data), images, seed), out)


@analyze.command()
def gradcam(
    runs: Runs,
    image: Annotated[
        list[Path] | None, typer.Option(help="An image of the test half to show. Repeatable.")
    ] = None,
    count: Annotated[int, typer.Option(min=1, help="How many images to show otherwise.")] = 6,
    layer: Annotated[
        str, typer.Option(help="split: where MSRCI intervenes. last: the backbone's end, coarser.")
    ] = "split",
    masks: Annotated[
        Path | None, typer.Option(help="Object masks, CLASS/NAME.png, if the set has none.")
    ] = None,
    images: Images = 400,
    data: Data = None,
    out: Out = _OUT,
) -> None:
    """Show where embeddings, and what ODBA's dictionary takes for background, come from."""
    from couce.train.analysis.gradcam import gradcam as analysis
    from couce.train.analysis.runs import open_runs

    finish(analysis(open_runs(runs, data), image or [], count, images, layer, masks), out)


@analyze.command()
def tsne(
    runs: Runs,
    classes: Annotated[int, typer.Option(min=2, help="How many classes to show.")] = 10,
    images: Images = 400,
    seed: Seed = 0,
    data: Data = None,
    out: Out = _OUT,
) -> None:
    """Show embeddings of test classes in the plane, run beside run."""
    from couce.train.analysis.runs import open_runs
    from couce.train.analysis.tsne import tsne as analysis

    finish(analysis(open_runs(runs, data), classes, images, seed), out)


@analyze.command()
def grid(
    runs: Runs,
    queries: Annotated[int, typer.Option(min=1, help="How many queries to show.")] = 6,
    differing: Annotated[
        bool, typer.Option("--differing", help="Only queries that the runs answer differently.")
    ] = False,
    images: Images = 600,
    seed: Seed = 0,
    data: Data = None,
    out: Out = _OUT,
) -> None:
    """Show what is found for queries, right in green and wrong in red, run below run."""
    from couce.train.analysis.grid import grid as analysis
    from couce.train.analysis.runs import open_runs

    finish(analysis(open_runs(runs, data), queries, images, differing, seed), out)


@analyze.command()
def dictionary(
    runs: Runs,
    atoms: Annotated[int, typer.Option(min=1, help="How many atoms to show.")] = 6,
    images: Images = 400,
    data: Data = None,
    out: Out = _OUT,
) -> None:
    """Show ODBA's gate, its atoms' nearest images and how many directions they span."""
    from couce.train.analysis.dictionary import dictionary as analysis
    from couce.train.analysis.runs import open_runs

    finish(analysis(open_runs(runs, data), atoms, images), out)


@analyze.command()
def overhead(
    backbone: Annotated[str, typer.Option(help="Which.")] = "tiny",
    batch: Annotated[int, typer.Option(min=6, help="Images in a step.")] = 120,
    pixels: Annotated[
        int | None, typer.Option(min=16, help="Side of an image, unless the backbone's own.")
    ] = None,
    rounds: Annotated[int, typer.Option(min=2, help="Turns, each with every row once.")] = 40,
    images: Annotated[int, typer.Option(min=1, help="Images of an epoch; CUB has 5864.")] = 5864,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    memory: Annotated[bool, typer.Option(help="Measure memory, in a process for each row.")] = True,
    out: Out = _OUT,
) -> None:
    """Time a training step, its memory and inference with and without ODBA and MSRCI."""
    from rich.console import Console

    from couce.backbones import build_backbone
    from couce.train.analysis.overhead import overhead as analysis
    from couce.train.analysis.steps import Case
    from couce.train.processes import Processes

    console = Console(highlight=False, markup=False)
    side = pixels or build_backbone(backbone).preprocess.crop
    case = Case(backbone, batch, side, str(Processes().device(device)))
    finish(analysis(case, rounds, images, memory, console.print), out)


@analyze.command()
def report(
    folders: Annotated[list[Path], typer.Argument(help="Folders that analyses wrote to.")],
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("report.html"),
) -> None:
    """Join the analyses of several folders into one self-contained page."""
    from couce.train.analysis.section import write_report

    typer.echo(f"Written to {write_report(folders, out)}.")
