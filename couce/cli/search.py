from pathlib import Path
from typing import Annotated

import typer

from couce.cli.shared.options import Filter


def search(
    image: Annotated[Path, typer.Argument(help="The image to search with.")],
    server: Annotated[
        str, typer.Option(help="The address of the server.")
    ] = "http://127.0.0.1:8000",
    key: Annotated[
        str | None, typer.Option(envvar="COUCE_KEY", help="The key that `couce key new` made.")
    ] = None,
    k: Annotated[int, typer.Option("-k", min=1, help="How many hits to show.")] = 10,
    chosen: Filter = None,
    group: Annotated[
        bool, typer.Option("--by-label", help="Show only the best hit of each label.")
    ] = False,
) -> None:
    """Find images that look like an image, on a running server."""
    from rich.console import Console
    from rich.table import Table

    from couce.client import Client

    answer = Client(server, key).search(
        image, k=k, filter=chosen or (), group_by="label" if group else None
    )
    table = Table("score", "label", "id")
    for hit in answer.hits:
        table.add_row(f"{hit.score:.3f}", hit.label or "", hit.id)
    console = Console(highlight=False, markup=False)
    console.print(table)
    times = {name.removesuffix("_ms"): ms for name, ms in answer.time.items() if ms is not None}
    console.print(", ".join(f"{name} {ms:.1f} ms" for name, ms in times.items()))
    console.print(f"Next: open {server} in a browser to see the images", soft_wrap=True)
