"""`couce analyze ablation`: methods side by side, over seeds and any setting (paper, Table ablation)."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from couce.errors import unknown_name
from couce.train.analysis.study import Cell, Spread, cells, run_cells, summarise
from couce.train.settings import METHODS

METRICS = ("R@1", "R@2", "RP", "MAP@R", "NMI")


def ablation(
    data: Sequence[str],
    settings: Sequence[str],
    methods: Sequence[str],
    seeds: int,
    over: Sequence[str],
    folder: Path,
    jobs: int,
    say: Callable[[str], None],
) -> dict[str, dict[str, Spread]]:
    """Trains what is missing and returns mean and spread of the last epoch's test metrics.

    The last epoch, not the best: choosing one by the test half would flatter all of them. What was
    found, run by run, is in ``ablation.json``.
    """
    for method in methods:
        if method not in METHODS:
            raise unknown_name("method", method, METHODS)
    todo = cells(data, settings, methods, seeds, over)
    order = {cell: place for place, cell in enumerate(todo)}
    done: list[tuple[Cell, dict[str, Any]]] = []
    for cell, result in run_cells(todo, folder, jobs):
        done.append((cell, result))
        r1 = 100 * result["last"]["metrics"]["R@1"]
        say(f"{len(done)}/{len(todo)}  {cell.name}  R@1 {r1:.1f}")
    done.sort(key=lambda pair: order[pair[0]])
    rows = summarise(
        ((cell, result["last"]["metrics"]) for cell, result in done),
        lambda cell: " ".join([*cell.over, cell.method]),
    )
    content = {
        "runs": [{**cell._asdict(), "name": cell.name, **result} for cell, result in done],
        "rows": {
            row: {name: value._asdict() for name, value in metrics.items()}
            for row, metrics in rows.items()
        },
    }
    (folder / "ablation.json").write_text(json.dumps(content, indent=2) + "\n")
    return rows


def spread_table(rows: dict[str, dict[str, Spread]]) -> Table:
    """The paper's five metrics in percent, mean ± spread, a row each."""
    table = Table()
    table.add_column("", no_wrap=True)
    for metric in METRICS:
        table.add_column(metric, justify="right", no_wrap=True)
    for name, metrics in rows.items():
        found = (metrics[metric] for metric in METRICS)
        table.add_row(name, *(f"{100 * v.mean:.1f}±{100 * v.deviation:.1f}" for v in found))
    return table
