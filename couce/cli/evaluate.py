from pathlib import Path
from typing import Annotated

import typer

from couce.cli.embed import Preparation, prepared


def evaluate(
    model: Annotated[
        Path, typer.Argument(help="A checkpoint (.pt), a model (.onnx), or embeddings (.npz).")
    ],
    dataset: Annotated[str, typer.Argument(help="The set whose test half is searched.")] = "demo",
    data: Annotated[Path | None, typer.Option(help="Where the set is, unless data/NAME.")] = None,
    train_classes: Annotated[
        int | None, typer.Option(help="Of a folder without halves: how many classes train.")
    ] = None,
    confounding: Annotated[float, typer.Option(min=0, max=1, help="Of the demo set.")] = 0.9,
    preparation: Preparation = None,
    out: Annotated[Path | None, typer.Option(help="Where to write the metrics as JSON.")] = None,
) -> None:
    """Measure retrieval on a test half."""
    import json

    from rich.console import Console

    from couce.train.command import metrics_table
    from couce.train.measure import measure_file

    metrics = measure_file(model, dataset, data, train_classes, confounding, prepared(preparation))
    console = Console(highlight=False, markup=False)
    console.print(metrics_table({model.name: metrics}))
    target = out or model.with_suffix(".metrics.json")
    target.write_text(json.dumps(metrics, indent=2) + "\n")
    then = {
        ".pt": f"couce export {model} model.onnx",
        ".onnx": f"couce index build gallery/ --model {model}",
    }.get(model.suffix, "couce index build gallery/")
    console.print(f"Written to {target}. Next: {then}", soft_wrap=True)
