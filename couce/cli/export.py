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
    from couce.train.data import open_dataset
    from couce.train.data.demo import draw, examples

    console = Console(highlight=False, markup=False)
    name = dataset or load(checkpoint).get("data") or "demo"
    try:
        found = (
            open_dataset(name, data) if name != "demo" or data or Path("data").exists() else None
        )
    except (CouceError, OSError) as error:
        if dataset or data:
            raise
        console.print(f"Compared on drawn pictures: {error}.", soft_wrap=True)
        found = None
    if found is not None:
        step = max(1, len(found.test.paths) // PARITY_IMAGES)
        images = list(found.test.paths[::step][:PARITY_IMAGES])
        labelled = Labelled(found.name, found.test.paths, found.test.labels)
    else:
        plan = examples(0.9, per_class=1, seed=0)
        images, labelled = [draw(each) for each in plan[:PARITY_IMAGES]], None
    learn_from = found.train.paths if found is not None else ()
    if calibrate is not None:
        learn_from = image_files(calibrate)
        if not learn_from:
            raise CouceError(f"there are no images in {calibrate} to calibrate with")
    run(
        checkpoint,
        model,
        images,
        kind=input_kind,
        precision=precision,
        calibrate=learn_from,
        labelled=labelled,
        certified=certify,
        say=lambda line: console.print(line, soft_wrap=True),
    )
    console.print(
        f"Written to {model}. Next: couce index build gallery/ --model {model}", soft_wrap=True
    )
