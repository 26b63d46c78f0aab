"""Options that several commands have, defined once."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from couce.preprocess import Preprocess

DataFolder = Annotated[
    Path | None,
    typer.Option("--data", help="The folder of the data set. [default: data/NAME]"),
]
TrainClasses = Annotated[
    int | None,
    typer.Option(
        help="How many classes form the training half of a folder without train/ and test/."
        " [default: half of them]"
    ),
]
Confounding = Annotated[
    float,
    typer.Option(
        min=0,
        max=1,
        help="For the demo set: the share of training images that show the background and the"
        " light of their class.",
    ),
]
Plugins = Annotated[
    list[Path] | None,
    typer.Option(
        "--plugin",
        help="A Python file with your own losses, backbones or data sets. Repeatable.",
    ),
]
Masks = Annotated[
    str | None,
    typer.Option(
        metavar="FOLDER|rembg",
        help="A folder of object masks, CLASS/NAME.png. Or rembg: the network of that package makes"
        " them. [default: the masks of the data set, or a rough estimate]",
    ),
]
MaskModel = Annotated[
    Path | None,
    typer.Option(
        help="An ONNX file of a salient-object network, such as U2-Net, ISNet or BiRefNet, that"
        " makes the object masks."
    ),
]
Seed = Annotated[int, typer.Option(min=0, help="The seed of all random numbers.")]
Model = Annotated[Path, typer.Option(help="The ONNX model that embeds the images.")]
Provider = Annotated[str, typer.Option(help="Where the model runs: auto, cuda, tensorrt or cpu.")]
Filter = Annotated[
    list[str] | None,
    typer.Option(
        "--filter",
        help="Take only items with label=VALUE, id=VALUE or metadata.KEY=VALUE. Repeatable.",
    ),
]
PreprocessOption = Annotated[
    list[str] | None,
    typer.Option(
        "--preprocess",
        help="How to prepare images for a model that CouCE did not export: resize=256, crop=224,"
        " mean=0.5,0.5,0.5, std=..., channels=BGR, scale=255 or aspect=keep. Repeatable.",
    ),
]


def parse_preprocess(assignments: list[str] | None) -> "Preprocess | None":
    """The value of ``PreprocessOption``; None if the option is not given."""
    from couce.preprocess import Preprocess

    return Preprocess.parse(assignments) if assignments else None
