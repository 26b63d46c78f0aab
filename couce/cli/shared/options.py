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
        help="How many classes of a folder without train/ and test/ are the training half."
        " [default: half of them]"
    ),
]
Confounding = Annotated[
    float,
    typer.Option(
        min=0,
        max=1,
        help="Share of the demo set's training pictures in their class's surroundings.",
    ),
]
Plugins = Annotated[
    list[Path] | None,
    typer.Option(
        "--plugin",
        help="A Python file with losses, backbones or data sets of your own. Repeatable.",
    ),
]
Masks = Annotated[
    Path | None,
    typer.Option(help="A folder of object masks, CLASS/NAME.png. [default: those of the data set]"),
]
Seed = Annotated[int, typer.Option(min=0, help="Seed of all random numbers.")]
Model = Annotated[Path, typer.Option(help="The ONNX model that embeds the images.")]
Provider = Annotated[str, typer.Option(help="Where the model runs: auto, cuda, tensorrt or cpu.")]
Filter = Annotated[
    list[str] | None,
    typer.Option("--filter", help="Only items with label=x, id=x or metadata.KEY=x. Repeatable."),
]
PreprocessOption = Annotated[
    list[str] | None,
    typer.Option(
        "--preprocess",
        help="How to prepare images for a model that is not CouCE's: resize=256, crop=224,"
        " mean=0.5,0.5,0.5, std=..., channels=BGR, scale=255, aspect=keep. Repeatable.",
    ),
]


def parse_preprocess(assignments: list[str] | None) -> "Preprocess | None":
    from couce.preprocess import Preprocess

    return Preprocess.parse(assignments) if assignments else None
