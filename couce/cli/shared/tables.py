"""Tables that more than one command prints."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich.table import Table

from couce.files import printable

if TYPE_CHECKING:
    from couce.index import Hit


def metrics_table(rows: Mapping[str, Mapping[str, float]]) -> Table:
    """A table of metrics in percent, with a row for each name in ``rows``."""
    table = Table()
    table.add_column("")
    for metric in next(iter(rows.values())):
        table.add_column(metric, justify="right")
    for name, metrics in rows.items():
        table.add_row(name, *(f"{100 * value:.2f}" for value in metrics.values()))
    return table


def hits_table(hits: Sequence["Hit"]) -> Table:
    """A table of hits with their cosines, labels and paths."""
    table = Table()
    for name, justify in (("", "right"), ("cosine", "right"), ("label", "left"), ("path", "left")):
        table.add_column(name, justify=justify, overflow="fold")  # type: ignore[arg-type]
    for rank, hit in enumerate(hits, 1):
        path = hit.item.paths[0] if hit.item.paths else hit.id
        more = f" (+{len(hit.item.paths) - 1})" if len(hit.item.paths) > 1 else ""
        table.add_row(
            str(rank), f"{hit.score:.4f}", printable(hit.item.label or ""), printable(path) + more
        )
    return table
