"""`couce train`: settings and run folder from what was typed, and the table at the end."""

from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from couce.errors import CouceError
from couce.train.session import Data, train
from couce.train.settings import TrainSettings, resolve


def run_training(
    data: Data,
    method: str,
    preset: str,
    config: Path | None,
    assignments: Sequence[str],
    options: Mapping[str, Any],
    out: Path | None,
    resume: Path | None,
) -> None:
    if resume is None:
        settings = resolve(data.name, preset, method, config, assignments, options)
        folder = out or _new_folder(Path("runs"), Path(data.name).stem)
        if (folder / "last.pt").exists():
            raise CouceError(f"{folder} holds a run already; --resume {folder} goes on with it")
    else:
        folder = resume
        settings = _resumed(folder, config, assignments, options)
        data = Data.of_run(folder, data)
    result = train(data, settings, folder, resume=resume is not None)
    if result:  # the leading process
        console = Console(highlight=False, markup=False)
        console.print(metrics_table({name: result[name]["metrics"] for name in ("last", "best")}))
        console.print(f"Next: couce evaluate {folder / 'best.pt'} {data.name}", soft_wrap=True)


def metrics_table(rows: Mapping[str, Mapping[str, float]]) -> Table:
    """Metrics in percent, a row each."""
    table = Table()
    table.add_column("")
    for metric in next(iter(rows.values())):
        table.add_column(metric, justify="right")
    for name, metrics in rows.items():
        table.add_row(name, *(f"{100 * value:.2f}" for value in metrics.values()))
    return table


def _new_folder(parent: Path, name: str) -> Path:
    return next(p for n in count(1) if not (p := parent / f"{name}-{n}").exists())


def _resumed(
    folder: Path, config: Path | None, assignments: Sequence[str], options: Mapping[str, Any]
) -> TrainSettings:
    """The run's own settings: others would make it another run. Only its length may change."""
    path = folder / "config.toml"
    if not path.exists():
        raise CouceError(f"{folder} holds no run to go on with: {path} is missing")
    given = {key for key, value in options.items() if value is not None} - {"epochs"}
    if config is not None or assignments or given:
        raise CouceError("a run goes on with its own settings; with --resume give --epochs at most")
    return resolve("", config=path, options={"epochs": options.get("epochs")})
