from pathlib import Path
from typing import Annotated

import typer

from couce.cli.shared.options import (
    Confounding,
    DataFolder,
    Plugins,
    PreprocessOption,
    TrainClasses,
    parse_preprocess,
)


def evaluate(
    model: Annotated[
        Path, typer.Argument(help="A checkpoint (.pt), an ONNX model, or embeddings (.npz).")
    ],
    dataset: Annotated[
        str,
        typer.Argument(
            help="The data set whose test half is searched, as for `couce train`. It is not needed"
            " for an .npz file."
        ),
    ] = "demo",
    data: DataFolder = None,
    train_classes: TrainClasses = None,
    confounding: Confounding = 0.9,
    preprocess: PreprocessOption = None,
    plugin: Plugins = None,
    out: Annotated[
        Path | None,
        typer.Option(help="The JSON file for the metrics. [default: MODEL.metrics.json]"),
    ] = None,
) -> None:
    """Measure retrieval metrics on the test half of a data set."""
    import json

    from rich.console import Console

    from couce.cli.shared.tables import metrics_table
    from couce.evaluate import evaluate as run
    from couce.plugins import load_plugins

    load_plugins(plugin or ())
    metrics = run(
        model,
        dataset,
        data=data,
        train_classes=train_classes,
        confounding=confounding,
        preprocess=parse_preprocess(preprocess),
    )
    console = Console(highlight=False, markup=False)
    console.print(metrics_table({model.name: metrics}))
    target = out or model.with_suffix(".metrics.json")
    target.write_text(json.dumps(metrics, indent=2) + "\n")
    then = {
        ".pt": f"couce export {model} model.onnx",
        ".onnx": f"couce index build gallery/ --model {model}",
    }.get(model.suffix, "couce index build gallery/")
    console.print(f"Written to {target}. Next: {then}", soft_wrap=True)
