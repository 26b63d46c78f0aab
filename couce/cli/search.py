from pathlib import Path
from typing import Annotated

import typer


def search(
    image: Annotated[Path, typer.Argument(help="An image file.")],
    server: Annotated[str, typer.Option(help="Of `couce serve`.")] = "http://127.0.0.1:8000",
    key: Annotated[
        str | None, typer.Option(envvar="COUCE_KEY", help="From `couce key new`.")
    ] = None,
    k: Annotated[int, typer.Option("-k", min=1, help="How many to find.")] = 10,
    chosen: Annotated[
        list[str] | None,
        typer.Option("--filter", help="label=x, id=x or metadata.KEY=x. Repeatable."),
    ] = None,
    group: Annotated[
        bool, typer.Option("--by-label", help="Only the best hit of each label.")
    ] = False,
) -> None:
    """Find what looks like an image, on a running server."""
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
    console.print(f"Next: open {server} in a browser to see them", soft_wrap=True)
