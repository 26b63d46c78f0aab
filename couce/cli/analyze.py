from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from couce.cli.shared.options import DataFolder, Masks, Plugins, Seed

if TYPE_CHECKING:
    from couce.report.section import Section
    from couce.train.figures.runs import TrainedRun

analyze = typer.Typer(
    no_args_is_help=True,
    help="Make the tables and figures of the paper, and studies of many trainings.",
    rich_markup_mode=None,
)

_PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True}

Run = Annotated[Path, typer.Argument(help="The folder of a run, or a checkpoint.")]
Runs = Annotated[list[Path], typer.Argument(help="Folders of runs on one data set.")]
Data = Annotated[
    Path | None,
    typer.Option(help="The folder of the run's data set. [default: where it was in training]"),
]
Images = Annotated[int, typer.Option(min=4, help="About how many test images to look at.")]
Out = Annotated[Path, typer.Option(help="The folder for pictures, figures and report.html.")]
_OUT = Path("analysis")


def _opened(runs: list[Path], data: Path | None, plugins: list[Path] | None) -> "list[TrainedRun]":
    from couce.plugins import load_plugins
    from couce.train.figures.runs import open_runs

    load_plugins(plugins or ())
    return open_runs(runs, data)


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
        str, typer.Argument(help="What to train on, as for `couce train`.")
    ] = "demo",
    methods: Annotated[
        str, typer.Option(help="The methods to compare, separated by commas.")
    ] = "base,odba,msrci,odba+msrci,couce",
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds for each method.")] = 3,
    over: Annotated[
        list[str] | None,
        typer.Option(
            help="A setting, or confounding, with the values to try, as lr=1e-4,1e-3. Repeatable."
        ),
    ] = None,
    data: DataFolder = None,
    jobs: Annotated[int, typer.Option(min=1, help="Number of runs at the same time.")] = 1,
    out: Annotated[Path, typer.Option(help="The folder in which the runs are kept.")] = Path(
        "studies"
    ),
    report: Annotated[Path, typer.Option(help="The folder for the table and the picture.")] = _OUT,
) -> None:
    """Train several methods over several seeds. Further options go to `couce train`."""
    from couce.errors import CouceError
    from couce.train.studies.ablation import ablation as study
    from couce.train.studies.ablation import ablation_section, section_name

    if dataset.startswith("-"):
        raise CouceError(f"say what to train on before {dataset}, such as demo")
    rows, judged = study(
        [dataset, *(["--data", str(data)] if data else [])],
        context.args,
        methods.split(","),
        seeds,
        over or [],
        out,
        jobs,
    )
    finish(ablation_section(rows, seeds, over or [], judged), report)
    name = section_name(over or [])
    typer.echo(f"The figures of each run are in {out / f'{name}.json'}.")


@analyze.command()
def confounding(runs: Runs, data: Data = None, plugin: Plugins = None, out: Out = _OUT) -> None:
    """Measure what explains the embeddings of the demo set, and what ODBA's gate selects."""
    from couce.train.figures.confounding import confounding as analysis

    finish(analysis(_opened(runs, data, plugin)), out)


@analyze.command()
def fourier(
    run: Run,
    images: Images = 400,
    seed: Seed = 0,
    data: Data = None,
    plugin: Plugins = None,
    out: Out = _OUT,
) -> None:
    """Measure what MSRCI changes in amplitude and phase, by ring and schedule."""
    from couce.train.figures.fourier import fourier as analysis

    finish(analysis(_opened([run], data, plugin)[0], images, seed), out)


@analyze.command()
def semantic(
    run: Run,
    images: Images = 400,
    seed: Seed = 0,
    data: Data = None,
    plugin: Plugins = None,
    out: Out = _OUT,
) -> None:
    """Measure how much class information MSRCI leaves in the embeddings, by schedule."""
    from couce.train.figures.semantic import semantic as analysis

    finish(analysis(_opened([run], data, plugin)[0], images, seed), out)


@analyze.command()
def gradcam(
    runs: Runs,
    image: Annotated[
        list[Path] | None, typer.Option(help="An image of the test half to show. Repeatable.")
    ] = None,
    count: Annotated[int, typer.Option(min=1, help="How many images to show otherwise.")] = 6,
    layer: Annotated[
        str,
        typer.Option(help="The map to explain: split (where MSRCI intervenes), or last (coarser)."),
    ] = "split",
    masks: Masks = None,
    images: Images = 400,
    data: Data = None,
    plugin: Plugins = None,
    out: Out = _OUT,
) -> None:
    """Show which regions make the embeddings, and which ODBA takes for background."""
    from couce.train.figures.gradcam import gradcam as analysis

    finish(analysis(_opened(runs, data, plugin), image or [], count, images, layer, masks), out)


@analyze.command()
def tsne(
    runs: Runs,
    classes: Annotated[int, typer.Option(min=2, help="How many classes to show.")] = 10,
    images: Images = 400,
    seed: Seed = 0,
    data: Data = None,
    plugin: Plugins = None,
    out: Out = _OUT,
) -> None:
    """Show embeddings of test classes as a t-SNE map, one for each run."""
    from couce.train.figures.tsne import tsne as analysis

    finish(analysis(_opened(runs, data, plugin), classes, images, seed), out)


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
    plugin: Plugins = None,
    out: Out = _OUT,
) -> None:
    """Show the nearest images of some queries: right ones in green, wrong ones in red."""
    from couce.train.figures.grid import grid as analysis

    finish(analysis(_opened(runs, data, plugin), queries, images, differing, seed), out)


@analyze.command()
def dictionary(
    runs: Runs,
    atoms: Annotated[int, typer.Option(min=1, help="How many atoms to show.")] = 6,
    images: Images = 400,
    data: Data = None,
    plugin: Plugins = None,
    out: Out = _OUT,
) -> None:
    """Show ODBA's gate, the images nearest to its atoms, and the rank of its dictionary."""
    from couce.train.figures.dictionary import dictionary as analysis

    finish(analysis(_opened(runs, data, plugin), atoms, images), out)


@analyze.command()
def overhead(
    backbone: Annotated[str, typer.Option(help="The backbone to time.")] = "tiny",
    batch: Annotated[int, typer.Option(min=6, help="Images in a step.")] = 120,
    pixels: Annotated[
        int | None, typer.Option(min=16, help="Side of an image. [default: the backbone's]")
    ] = None,
    rounds: Annotated[
        int, typer.Option(min=2, help="Number of turns; each times every row once.")
    ] = 40,
    images: Annotated[
        int, typer.Option(min=1, help="Number of images in an epoch; CUB has 5864.")
    ] = 5864,
    device: Annotated[str, typer.Option(help="Where to compute: auto, cpu or cuda.")] = "auto",
    memory: Annotated[
        bool, typer.Option(help="Measure memory too, in a process for each row.")
    ] = True,
    out: Out = _OUT,
) -> None:
    """Time a training step, its memory and inference with and without ODBA and MSRCI."""
    from couce.backbones import build_backbone
    from couce.machine.device import choose_device
    from couce.train.figures.overhead import overhead as analysis
    from couce.train.figures.steps import Case

    side = pixels or build_backbone(backbone).preprocess.crop
    case = Case(backbone, batch, side, str(choose_device(device)))
    finish(analysis(case, rounds, images, memory), out)


@analyze.command()
def report(
    folders: Annotated[list[Path], typer.Argument(help="Folders that analyses wrote to.")],
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("report.html"),
) -> None:
    """Join the analyses of several folders into one self-contained page."""
    from couce.report.section import write_report

    typer.echo(f"Written to {write_report(folders, out)}.")
