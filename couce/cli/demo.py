from pathlib import Path
from typing import Annotated

import typer


def demo(
    out: Annotated[
        Path, typer.Option(help="The folder for all files that the demo writes.")
    ] = Path("demo"),
    epochs: Annotated[
        int | None, typer.Option(min=1, help="How many epochs to train. [default: 25]")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="The seed of both trainings.")] = 0,
    serve: Annotated[
        bool, typer.Option("--serve/--no-serve", help="Start a search server at the end.")
    ] = True,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="The port of the server; 0 for any free one.")
    ] = 8000,
) -> None:
    """Try all steps on a small drawn data set.

    The steps are train, export, index and serve.
    """
    from rich.console import Console

    from couce.cli.shared.tables import metrics_table
    from couce.data.folders import image_files
    from couce.embedder import Embedder
    from couce.export.exporting import write_model
    from couce.index import open_index
    from couce.index.commands import build_index
    from couce.index.grid import draw_grid
    from couce.train.demo import train_demo

    console = Console(highlight=False, markup=False)
    trained = train_demo(out, epochs, seed)
    console.print("On unseen classes, before random backgrounds and in random light (%):")
    console.print(metrics_table(trained.metrics))
    console.print(
        "This is a single run of each. It shows the steps, not which of the two is better."
    )

    model = out / "model.onnx"
    gallery = image_files(trained.pictures / "test")
    console.print("Exporting the model trained with CouCE as a plain ONNX model")
    some = {str(path): path for path in gallery[::23]}
    write_model(trained.run / "last.pt", model, some)

    console.print("Indexing the test images and searching with one of them")
    index = out / "index"
    build_index(trained.pictures / "test", model, str(index), prune=True)
    embedder = Embedder(model)
    with open_index(str(index), model_hash=embedder.hash) as found:
        (hits,) = found.search(embedder.embed(gallery[:1]), k=11)
    draw_grid(gallery[0], hits).save(out / "search.png")
    console.print(f"The result of the search is in {out / 'search.png'}", soft_wrap=True)
    if serve:
        from couce.server.run import serve as run
        from couce.server.settings import ServerSettings

        run(ServerSettings(model=model, index=str(index), port=port), typer.echo)
    console.print(
        f"Next: couce serve --model {model} --index {index}; or couce train PATH, where PATH has a"
        " folder of your own images for each class",
        soft_wrap=True,
    )
