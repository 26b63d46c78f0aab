from pathlib import Path
from typing import Annotated

import typer


def demo(
    out: Annotated[Path, typer.Option(help="Where to put pictures and runs.")] = Path("demo"),
    epochs: Annotated[int | None, typer.Option(min=1, help="Epochs of each training.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the trainings.")] = 0,
) -> None:
    """Walk the road on the embedded data set."""
    from rich.console import Console

    from couce.embedder import Embedder
    from couce.export.command import export
    from couce.files import image_files
    from couce.train.command import metrics_table
    from couce.train.demo import train_demo

    console = Console(highlight=False, markup=False)
    trained = train_demo(out, epochs, seed, console.print)
    console.print("Unseen classes, before any background and in any light (%):")
    console.print(metrics_table(trained.metrics))
    console.print("One run of each, one seed: that shows the road, not which of the two is better.")

    model = out / "model.onnx"
    gallery = image_files(trained.pictures / "test")
    console.print("Exporting CouCE's model, without anything of CouCE")
    some = {str(path): path for path in gallery[::23]}
    export(trained.run / "last.pt", model, some, say=console.print)
    rows = Embedder(model).embed(gallery)
    console.print(f"{model} embeds the {len(rows)} test pictures in {rows.shape[1]} dimensions")
    console.print("Next: couce train PATH, on your own pictures in a folder for each class")
