from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from couce.cli.shared.options import DataFolder, MaskModel, Masks, Plugins, Seed

if TYPE_CHECKING:
    from couce.report.section import Section
    from couce.train.figures.runs import TrainedRun

analyze = typer.Typer(
    no_args_is_help=True,
    help="Make the tables and figures of the paper, and compare methods.",
    rich_markup_mode=None,
)

_PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True}

Run = Annotated[Path, typer.Argument(help="The folder of a run, or a checkpoint (.pt).")]
Runs = Annotated[
    list[Path], typer.Argument(help="Folders or checkpoints of runs on the same data set.")
]
Data = Annotated[
    Path | None,
    typer.Option(help="The folder of the data set. [default: its folder in training]"),
]
Images = Annotated[int, typer.Option(min=4, help="About how many test images to use.")]
Out = Annotated[
    Path, typer.Option(help="The folder for the results: images, a JSON file and report.html.")
]
_OUT = Path("analysis")


def _opened(runs: list[Path], data: Path | None, plugins: list[Path] | None) -> "list[TrainedRun]":
    from couce.plugins import load_plugins
    from couce.train.figures.runs import open_runs

    load_plugins(plugins or ())
    return open_runs(runs, data)


def finish(section: "Section", out: Path) -> None:
    """Prints the tables of a section, writes the section to ``out`` and prints the file names."""
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
        str, typer.Argument(help="The data set to train on, as for `couce train`.")
    ] = "demo",
    methods: Annotated[
        str, typer.Option(help="The methods to compare, separated by commas.")
    ] = "base,odba,msrci,odba+msrci,couce",
    seeds: Annotated[
        int, typer.Option(min=1, help="How many seeds to train each method with.")
    ] = 3,
    over: Annotated[
        list[str] | None,
        typer.Option(
            help="A setting (or confounding) and the values to compare, such as lr=1e-4,1e-3."
            " Repeatable."
        ),
    ] = None,
    data: DataFolder = None,
    jobs: Annotated[int, typer.Option(min=1, help="How many runs to train at the same time.")] = 1,
    audit: Annotated[
        bool,
        typer.Option(
            "--audit",
            help="Also measure how much each run depends on backgrounds, as `couce audit`.",
        ),
    ] = False,
    masks: Masks = None,
    mask_model: MaskModel = None,
    plugin: Plugins = None,
    out: Annotated[Path, typer.Option(help="The folder for the runs.")] = Path("studies"),
    report: Annotated[
        Path, typer.Option(help="The folder for the table, the chart and report.html.")
    ] = _OUT,
) -> None:
    """Train several methods with several seeds. All other options go to `couce train`."""
    from couce.data import open_dataset
    from couce.errors import CouceError
    from couce.masks import open_masks
    from couce.plugins import load_plugins
    from couce.train.studies.ablation import ablation as study
    from couce.train.studies.ablation import ablation_section, section_name

    if dataset.startswith("-"):
        raise CouceError(
            f"name the data set before {dataset}: couce analyze ablation demo {dataset} ..."
        )
    if (masks or mask_model) and not audit:
        raise CouceError(
            "--masks and --mask-model are for the audit; add --audit, or leave them out"
        )
    load_plugins(plugin or ())
    audited = None
    if audit:
        from couce.train.studies.audits import audit_runs

        if masks or mask_model:  # a mistake shall not be found after hours of training
            open_masks(open_dataset(dataset, data), masks, mask_model)
        audited = partial(audit_runs, masks=masks, mask_model=mask_model)
    rows, judged = study(
        [dataset, *(["--data", str(data)] if data else [])],
        [*context.args, *(word for path in plugin or () for word in ("--plugin", str(path)))],
        methods.split(","),
        seeds,
        over or [],
        out,
        jobs,
        audited,
    )
    finish(ablation_section(rows, seeds, over or [], judged), report)
    name = section_name(over or [])
    typer.echo(f"The metrics of each run are in {out / f'{name}.json'}.")


@analyze.command()
def confounding(runs: Runs, data: Data = None, plugin: Plugins = None, out: Out = _OUT) -> None:
    """Measure what explains the embeddings of the demo set.

    The factors are class, background and light. The gate of ODBA is compared with them.
    """
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
    """Measure how MSRCI changes amplitudes and phases.

    The changes are measured for each frequency ring and each schedule.
    """
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
    """Measure how much class information MSRCI keeps.

    It is measured in the embeddings, for each schedule.
    """
    from couce.train.figures.semantic import semantic as analysis

    finish(analysis(_opened([run], data, plugin)[0], images, seed), out)


@analyze.command()
def gradcam(
    runs: Runs,
    image: Annotated[
        list[Path] | None,
        typer.Option(help="A test image to show. Repeatable. [default: --count images]"),
    ] = None,
    count: Annotated[
        int, typer.Option(min=1, help="How many images to show if no --image is given.")
    ] = 6,
    layer: Annotated[
        str,
        typer.Option(
            help="The feature map to explain: split (where MSRCI intervenes) or last (coarser)."
        ),
    ] = "split",
    masks: Masks = None,
    mask_model: MaskModel = None,
    images: Images = 400,
    data: Data = None,
    plugin: Plugins = None,
    out: Out = _OUT,
) -> None:
    """Show the image regions that the embeddings depend on.

    For runs with ODBA, the regions that it takes for background are shown as well.
    """
    from couce.train.figures.gradcam import gradcam as analysis

    opened = _opened(runs, data, plugin)
    finish(analysis(opened, image or [], count, images, layer, masks, mask_model), out)


@analyze.command()
def tsne(
    runs: Runs,
    classes: Annotated[int, typer.Option(min=2, help="How many test classes to show.")] = 10,
    images: Images = 400,
    seed: Seed = 0,
    data: Data = None,
    plugin: Plugins = None,
    out: Out = _OUT,
) -> None:
    """Show some test classes as a t-SNE map for each run."""
    from couce.train.figures.tsne import tsne as analysis

    finish(analysis(_opened(runs, data, plugin), classes, images, seed), out)


@analyze.command()
def grid(
    runs: Runs,
    queries: Annotated[int, typer.Option(min=1, help="How many queries to show.")] = 6,
    differing: Annotated[
        bool,
        typer.Option("--differing", help="Show only queries that the runs answer differently."),
    ] = False,
    images: Images = 600,
    seed: Seed = 0,
    data: Data = None,
    plugin: Plugins = None,
    out: Out = _OUT,
) -> None:
    """Show the nearest images of some queries.

    Correct images have a green frame, wrong ones a red frame.
    """
    from couce.train.figures.grid import grid as analysis

    finish(analysis(_opened(runs, data, plugin), queries, images, differing, seed), out)


@analyze.command()
def dictionary(
    runs: Runs,
    atoms: Annotated[
        int, typer.Option(min=1, help="How many atoms (rows of the dictionary) to show.")
    ] = 6,
    images: Images = 400,
    data: Data = None,
    plugin: Plugins = None,
    out: Out = _OUT,
) -> None:
    """Show the gate and the dictionary of ODBA.

    The images nearest to some atoms and the rank of the dictionary are shown as well.
    """
    from couce.train.figures.dictionary import dictionary as analysis

    finish(analysis(_opened(runs, data, plugin), atoms, images), out)


@analyze.command()
def overhead(
    backbone: Annotated[str, typer.Option(help="The backbone to time.")] = "tiny",
    batch: Annotated[int, typer.Option(min=6, help="How many images a step has.")] = 120,
    pixels: Annotated[
        int | None,
        typer.Option(
            min=16, help="Width and height of the images. [default: the crop of the backbone]"
        ),
    ] = None,
    rounds: Annotated[
        int,
        typer.Option(
            min=2, help="How many rounds to time. A round times every row of the table once."
        ),
    ] = 40,
    images: Annotated[
        int, typer.Option(min=1, help="How many images an epoch has. The default is that of CUB.")
    ] = 5864,
    device: Annotated[str, typer.Option(help="The device: auto, cpu or cuda.")] = "auto",
    memory: Annotated[
        bool, typer.Option(help="Also measure memory, in a new process for each row.")
    ] = True,
    out: Out = _OUT,
) -> None:
    """Time training and inference with and without CouCE.

    Memory is measured as well. ODBA alone and MSRCI alone have rows of their own.
    """
    from couce.backbones import build_backbone
    from couce.machine.device import choose_device
    from couce.train.figures.overhead import overhead as analysis
    from couce.train.figures.steps import Case

    side = pixels or build_backbone(backbone).preprocess.crop
    case = Case(backbone, batch, side, str(choose_device(device)))
    finish(analysis(case, rounds, images, memory), out)


@analyze.command()
def report(
    folders: Annotated[list[Path], typer.Argument(help="Folders with the results of analyses.")],
    out: Annotated[Path, typer.Option(help="The HTML file to write.")] = Path("report.html"),
) -> None:
    """Join the results in several folders to one HTML page.

    The page needs no other file.
    """
    from couce.report.section import write_report

    typer.echo(f"Written to {write_report(folders, out)}.")
