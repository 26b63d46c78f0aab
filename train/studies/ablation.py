"""`couce analyze ablation`: compares methods over several seeds and over the values of any setting.

This makes the paper's Tables ablation_main and generality, its figure of sensitivity, and all
tables of its appendix that need new trainings. docs/figures.md lists the command for each of them.
"""

import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from PIL import Image

from couce.errors import unknown_name
from couce.report.plots import draw, grouped
from couce.report.section import Section, Table, plain
from couce.train.settings import METHODS
from couce.train.studies.audits import AUDITED
from couce.train.studies.runs import Spread, StudyRun, run_all, study_runs, summarise

log = logging.getLogger(__name__)

METRICS = ("R@1", "R@2", "RP", "MAP@R", "NMI")


def ablation(
    data: Sequence[str],
    settings: Sequence[str],
    methods: Sequence[str],
    seeds: int,
    over: Sequence[str],
    folder: Path,
    jobs: int,
    audited: Callable[[Iterable[Path]], Mapping[Path, Mapping[str, float]]] | None = None,
) -> tuple[dict[str, dict[str, Spread]], str]:
    """Trains the missing runs. Returns the spread of the metrics, and the images they are of.

    These images are the test half or, with ``test = false`` among the settings, the held-out
    classes. The metrics are those of the last epoch: choosing the best epoch by the same metrics
    would flatter all methods. The results of each run are written to ``folder``, to a JSON file
    with the name of the section. ``audited`` adds metrics to those of the runs, by their folders.
    """
    for method in methods:
        if method not in METHODS:
            raise unknown_name("method", method, METHODS)
    todo = study_runs(data, settings, methods, seeds, over)
    order = {run: place for place, run in enumerate(todo)}
    done: list[tuple[StudyRun, dict[str, Any]]] = []
    for run, result in run_all(todo, folder, jobs):
        done.append((run, result))
        r1 = 100 * result["last"]["metrics"]["R@1"]
        log.info("%d/%d  %s  R@1 %.1f", len(done), len(todo), run.name, r1)
    done.sort(key=lambda pair: order[pair[0]])
    rows = _summarise(done, folder, over, {})
    if audited is not None:
        rows = _summarise(done, folder, over, audited([folder / run.name for run, _ in done]))
    return rows, " and ".join(dict.fromkeys(result["of"] for _, result in done))


def _summarise(
    done: Sequence[tuple[StudyRun, dict[str, Any]]],
    folder: Path,
    over: Sequence[str],
    audits: Mapping[Path, Mapping[str, float]],
) -> dict[str, dict[str, Spread]]:
    """The spread of the metrics. Writes these and the results of each run to the JSON file."""
    rows = summarise(
        (
            (run, {**result["last"]["metrics"], **audits.get(folder / run.name, {})})
            for run, result in done
        ),
        lambda run: " ".join([*run.over, run.method]),
    )
    content = {
        "runs": [
            {**run._asdict(), "name": run.name, **result, "audit": audits.get(folder / run.name)}
            for run, result in done
        ],
        "rows": {
            row: {name: value._asdict() for name, value in metrics.items()}
            for row, metrics in rows.items()
        },
    }
    text = json.dumps(plain(content), indent=2) + "\n"
    (folder / f"{section_name(over)}.json").write_text(text)
    return rows


def section_name(over: Sequence[str]) -> str:
    """The name of the section. It has the varied settings, so that studies keep separate files.

    >>> section_name([]), section_name(["odba.capacity=512,1024", "lr=0.1"])
    ('ablation', 'ablation-odba.capacity-lr')
    """
    return "-".join(["ablation", *(axis.partition("=")[0] for axis in over)])


def ablation_section(
    rows: dict[str, dict[str, Spread]], seeds: int, over: Sequence[str], judged: str
) -> Section:
    """The table, and a figure of R@1 and MAP@R: a curve over the setting, if one was varied."""
    measured = f"{judged.capitalize()}, last epoch, in percent"
    return Section(
        name=section_name(over),
        title="Methods side by side" + (f", over {' and '.join(over)}" if over else ""),
        about=(
            (
                f"{measured}: mean ± sample deviation over {seeds} seeds."
                " With few seeds, a difference smaller than the deviations means nothing."
                if seeds > 1
                else f"{measured}. There is one seed, so nothing is known about chance differences."
            )
            + " The metrics are those of the last epoch, not of the best one:"
            f" choosing an epoch by the {judged} would flatter all methods."
        ),
        tables=_tables(rows, seeds > 1),
        pictures=[(_picture(rows, over), "The mean, with one sample deviation to either side.")],
        values={
            "seeds": seeds,
            "over": list(over),
            "rows": {row: dict(metrics) for row, metrics in rows.items()},
        },
    )


def _picture(rows: dict[str, dict[str, Spread]], over: Sequence[str]) -> Image.Image:
    # The name of a row is its varied settings, then its method.
    points = [(name.rpartition(" ")[0], name.rpartition(" ")[2]) for name in rows]
    if over:
        names = list(dict.fromkeys(point for point, _ in points))
        series = list(dict.fromkeys(method for _, method in points))
    else:
        names, series = list(rows), [""]
    one_key = len(over) == 1
    labels = [name.partition("=")[2] if one_key else name for name in names]

    def paint(panels: list[Axes]) -> None:
        for panel, metric in zip(panels, ("R@1", "MAP@R"), strict=True):
            found = {
                method: [rows[f"{name} {method}".strip()][metric] for name in names]
                for method in series
            }
            grouped(
                panel,
                labels,
                {method: [100 * v.mean for v in values] for method, values in found.items()},
                {
                    method: [
                        (100 * (v.mean - v.deviation), 100 * (v.mean + v.deviation)) for v in values
                    ]
                    for method, values in found.items()
                },
                lines=one_key,
            )
            panel.set(title=f"{metric}, %", xlabel=over[0].partition("=")[0] if one_key else "")
        if len(series) > 1:
            panels[0].legend(fontsize=8)

    return draw(paint, columns=2)


def _tables(rows: dict[str, dict[str, Spread]], several: bool) -> list[Table]:
    """The metrics and, if the runs were audited, how much they depend on backgrounds."""
    tables = [spread_table(rows, METRICS, several)]
    if all(AUDITED[0] in metrics for metrics in rows.values()):
        title = "Audit of backgrounds, in percent (points for the difference)"
        tables.append(spread_table(rows, AUDITED, several, title))
    return tables


def spread_table(
    rows: dict[str, dict[str, Spread]], metrics: Sequence[str], several: bool, title: str = ""
) -> Table:
    """Metrics in percent. With ``several`` seeds: mean ± sample deviation."""
    return Table(
        title=title,
        columns=("", *metrics),
        rows=tuple(
            (
                name,
                *(
                    f"{100 * v.mean:.1f}" + (f"±{100 * v.deviation:.1f}" if several else "")
                    for v in map(found.__getitem__, metrics)
                ),
            )
            for name, found in rows.items()
        ),
    )
