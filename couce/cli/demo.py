from pathlib import Path
from typing import Annotated

import typer


def demo(
    out: Annotated[Path, typer.Option(help="The folder for pictures and runs.")] = Path("demo"),
    epochs: Annotated[
        int | None, typer.Option(min=1, help="Epochs of each training. [default: 25]")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the trainings.")] = 0,
    serve: Annotated[
        bool, typer.Option("--serve/--no-serve", help="Serve search at the end.")
    ] = True,
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port to serve at.")] = 8000,
) -> None:
    """Train, export, index and serve search on the embedded data set."""
    from rich.console import Console

    from couce.cli.shared.tables import metrics_table
    from couce.data.folders import image_files
    from couce.embedder import Embedder
    from couce.export.exporting import write_model
    from couce.index import open_index
    from couce.index.commands import build_index
    from couce.index.picture import draw_grid
    from couce.train.demo import train_demo

    console = Console(highlight=False, markup=False)
    trained = train_demo(out, epochs, seed)
    console.print("Unseen classes, before any background and in any light (%):")
    console.print(metrics_table(trained.metrics))
    console.print("One run of each, one seed: that shows the road, not which of the two is better.")

    model = out / "model.onnx"
    gallery = image_files(trained.pictures / "test")
    console.print("Exporting CouCE's model, without anything of CouCE")
    some = {str(path): path for path in gallery[::23]}
    write_model(trained.run / "last.pt", model, some)

    console.print("Indexing the test pictures, and searching with one of them")
    index = out / "index"
    build_index(trained.pictures / "test", model, str(index), prune=True)
    embedder = Embedder(model)
    with open_index(str(index), model_hash=embedder.hash) as found:
        (hits,) = found.search(embedder.embed(gallery[:1]), k=11)
    draw_grid(gallery[0], hits).save(out / "search.png")
    console.print(f"What was found is in {out / 'search.png'}", soft_wrap=True)
    if serve:
        from couce.server.run import serve as run
        from couce.server.settings import ServerSettings

        run(ServerSettings(model=model, index=str(index), port=port), typer.echo)
    console.print(
        f"Next: couce serve --model {model} --index {index}; or couce train PATH, on your own pictures"
        " in a folder for each class",
        soft_wrap=True,
    )
