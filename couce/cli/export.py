from pathlib import Path
from typing import Annotated

import typer


def export(
    checkpoint: Annotated[Path, typer.Argument(help="What `couce train` wrote: best.pt.")],
    model: Annotated[Path, typer.Argument(help="The ONNX file to write.")] = Path("model.onnx"),
    input_kind: Annotated[
        str, typer.Option("--input", help="uint8 (N, H, W, 3), or float (N, 3, H, W) from 0 to 1.")
    ] = "uint8",
    precision: Annotated[
        str, typer.Option(help="fp32, fp16 (for GPUs) or int8 (for CPUs).")
    ] = "fp32",
    calibrate: Annotated[
        Path | None, typer.Option(help="A folder of images to learn int8's ranges from.")
    ] = None,
    certify: Annotated[
        bool, typer.Option("--certify", help="Prove that nothing of CouCE is left in it.")
    ] = False,
    dataset: Annotated[
        str | None, typer.Option(help="The set to compare on, unless that of the training.")
    ] = None,
    data: Annotated[Path | None, typer.Option(help="Where the set is, unless data/NAME.")] = None,
) -> None:
    """Write a checkpoint as a plain ONNX embedding model."""
    from rich.console import Console

    from couce.checkpoint import load
    from couce.errors import CouceError
    from couce.export.command import PARITY_IMAGES, Labelled
    from couce.export.command import export as run
    from couce.files import image_files
    from couce.preprocess import ImageSource
    from couce.train.data import open_dataset
    from couce.train.data.demo import draw, examples

    console = Console(highlight=False, markup=False)
    trained_on = load(checkpoint).get("data")
    trained_on = trained_on if isinstance(trained_on, dict) else {}
    found = None
    try:
        if dataset is not None:
            found = open_dataset(dataset, data)
        elif trained_on:
            found = open_dataset(**trained_on | ({"root": data} if data else {}))
    except (CouceError, OSError, TypeError) as error:
        if dataset or data:
            raise
        console.print(f"The training set is not here ({error}).", soft_wrap=True)
    labelled: Labelled | None = None
    learn_from: tuple[Path, ...] = ()
    images: dict[str, ImageSource]
    if found is not None:
        step = max(1, len(found.test.paths) // PARITY_IMAGES)
        images = {str(path): path for path in found.test.paths[::step][:PARITY_IMAGES]}
        labelled = Labelled(found.name, found.test.paths, found.test.labels)
        learn_from = found.train.paths
    else:
        console.print("Compared on drawn pictures; --dataset and --data name others.")
        plan = examples(0.9, per_class=1, seed=0)[:PARITY_IMAGES]
        images = {f"drawn picture {n}": draw(each) for n, each in enumerate(plan)}
    if calibrate is not None:
        if precision != "int8":
            raise CouceError(f"--calibrate is for int8, and this is {precision}")
        learn_from = tuple(image_files(calibrate))
        if not learn_from:
            raise CouceError(f"there are no images in {calibrate} to calibrate with")
    run(
        checkpoint,
        model,
        images,
        input_kind=input_kind,
        precision=precision,
        calibrate=learn_from,
        labelled=labelled,
        certified=certify,
        say=lambda line: console.print(line, soft_wrap=True),
    )
    option = "" if model == Path("model.onnx") else f" --model {model}"
    console.print(f"Written to {model}. Next: couce index build gallery/{option}", soft_wrap=True)
