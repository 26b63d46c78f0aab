from pathlib import Path
from typing import Annotated

import typer

from couce.cli.embed import Preparation

_Origins = Annotated[
    list[str] | None,
    typer.Option("--origin", help="A site whose pages may call: https://example.org. Repeatable."),
]


def serve(
    model: Annotated[Path, typer.Option(help="From `couce export`.")] = Path("model.onnx"),
    index: Annotated[
        str, typer.Option(help="A folder, or milvus+http://host:19530/name.")
    ] = "index",
    host: Annotated[str, typer.Option(help="Where to listen.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any that is free.")] = 8000,
    workers: Annotated[int, typer.Option(min=1, help="Processes that serve.")] = 1,
    state: Annotated[
        Path | None,
        typer.Option(help="Folder of uploads, evaluations and keys; INDEX/server unless said."),
    ] = None,
    keys: Annotated[str, typer.Option(help="auto, required or off.")] = "auto",
    read_only: Annotated[bool, typer.Option("--read-only", help="Change nothing.")] = False,
    new_index: Annotated[
        bool, typer.Option("--new-index", help="Make an empty index where there is none.")
    ] = False,
    batch: Annotated[int, typer.Option(min=1, help="Images the model sees at once.")] = 16,
    batch_wait: Annotated[
        float, typer.Option(min=0, help="Seconds a batch waits for images being decoded.")
    ] = 0.005,
    queue: Annotated[
        int, typer.Option(min=1, help="Images taken and not yet embedded; beyond it 429.")
    ] = 48,
    max_bytes: Annotated[int, typer.Option(min=1024, help="Of a request.")] = 20 * 2**20,
    max_pixels: Annotated[int, typer.Option(min=1, help="Of an image.")] = 50_000_000,
    origins: _Origins = None,
    provider: Annotated[str, typer.Option(help="auto, cuda, tensorrt or cpu.")] = "auto",
    threads: Annotated[int | None, typer.Option(min=1, help="Of the model.")] = None,
    preparation: Preparation = None,
) -> None:
    """Serve search over HTTP, with a page for people."""
    from couce.server.run import serve as run
    from couce.server.settings import ServerSettings

    settings = ServerSettings.parse(
        {
            "model": model,
            "index": index,
            "host": host,
            "port": port,
            "workers": workers,
            "state": state,
            "authentication": keys,
            "read_only": read_only,
            "new_index": new_index,
            "batch": batch,
            "batch_wait": batch_wait,
            "queue": queue,
            "body_bytes": max_bytes,
            "pixels": max_pixels,
            "origins": origins or (),
            "provider": provider,
            "threads": threads,
            "preprocess": preparation or (),
        }
    )
    run(settings, typer.echo)
