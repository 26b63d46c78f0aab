from pathlib import Path
from typing import Annotated

import typer

from couce.cli.shared.options import DataFolder, Plugins


def export(
    checkpoint: Annotated[
        Path, typer.Argument(help="A checkpoint of `couce train`, such as best.pt.")
    ],
    model: Annotated[Path, typer.Argument(help="The ONNX file to write.")] = Path("model.onnx"),
    input: Annotated[
        str,
        typer.Option(
            help="The input of the model: uint8 (N, H, W, 3), or float (N, 3, H, W) from 0 to 1."
        ),
    ] = "uint8",
    precision: Annotated[
        str, typer.Option(help="The precision: fp32, fp16 (for GPUs) or int8 (for CPUs).")
    ] = "fp32",
    calibrate: Annotated[
        Path | None,
        typer.Option(
            help="A folder of images to calibrate int8 with. [default: the training half]"
        ),
    ] = None,
    certify: Annotated[
        bool,
        typer.Option(
            "--certify",
            help="Also write a certificate that only the weights differ from a model trained"
            " without CouCE.",
        ),
    ] = False,
    dataset: Annotated[
        str | None,
        typer.Option(
            help="The data set whose images are used for checks. [default: that of the training]"
        ),
    ] = None,
    data: DataFolder = None,
    plugin: Plugins = None,
) -> None:
    """Export a checkpoint as a plain ONNX model that embeds images."""
    from couce.export import export as run
    from couce.plugins import load_plugins

    load_plugins(plugin or ())
    run(
        checkpoint,
        model,
        input=input,
        precision=precision,
        calibrate=calibrate,
        certify=certify,
        dataset=dataset,
        data=data,
    )
    option = "" if model == Path("model.onnx") else f" --model {model}"
    typer.echo(f"Written to {model}. Next: couce index build gallery/{option}")
