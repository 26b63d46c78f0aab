"""The report of an audit: its numbers with their intervals, the tables and the worst failures."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray
from PIL import Image

from couce.audit.interventions import INTERVENTIONS
from couce.audit.measure import (
    CLEAN,
    NO_BACKGROUND,
    NO_OBJECT,
    OTHER,
    OWN,
    ROWS,
    Audit,
    QueryResults,
)
from couce.report.plots import GREEN, RED, Cell, draw, grouped, sheet
from couce.report.section import Section, Table

_RESAMPLES = 2000
_COLOUR = (
    " Saturation, hue and grey are shown but not counted, because classes may differ in colour."
)
_FAILURES = 6


class Estimate(NamedTuple):
    """A value and its 95 % interval."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, value: float, resampled: NDArray[np.float64]) -> "Estimate":
        finite = resampled[np.isfinite(resampled)]
        low, high = np.percentile(finite, [2.5, 97.5]) if len(finite) else (np.nan, np.nan)
        return cls(float(value), float(low), float(high))

    def percent(self, digits: int = 0) -> str:
        if not np.isfinite(self.value):
            return "unknown"
        one, low, high = (f"{100 * each:.{digits}f}" for each in self)
        return f"{one} ({low} to {high})"


class Share(NamedTuple):
    """The share of the wrong first hits that show a certain background, and that by chance."""

    wrong: int
    share: float
    chance: float


class AuditSummary(NamedTuple):
    """The numbers of one model. docs/audit.md explains them."""

    rows: dict[str, Estimate]  # R@1 of each row
    precision: dict[str, float]  # MAP@R of each row
    kept: dict[str, Estimate]  # R@1 of each row divided by R@1 of the unchanged images
    nuisances: Estimate  # the mean of kept over the interventions that count
    swap: Estimate  # kept before the background of another class
    gap: Estimate  # R@1 before a background of the own class minus R@1 before one of another
    alone: Estimate  # R@1 of the background alone
    chance: float  # R@1 of guessing
    same_background: Share | None  # unchanged queries: wrong hits with the query's background
    pasted_background: Share | None  # with another background: wrong hits with the pasted one
    difference: Estimate | None  # nuisances minus those of the first model


def counted(colour: bool) -> list[str]:
    """The interventions that count as nuisances."""
    return [each.name for each in INTERVENTIONS if colour or each.group != "colour"]


def summarise(
    found: Audit, colour: bool = False, backgrounds: Sequence[str] | None = None, seed: int = 0
) -> dict[str, AuditSummary]:
    """The numbers of each model, with 95 % intervals.

    ``backgrounds`` has the name of each gallery image's background, if known. The intervals come
    from resampling classes, each with all its queries. They say how much the numbers would change
    with other classes; images of one class are not independent. All models get the same draws.
    """
    names, codes = np.unique(found.labels, return_inverse=True)
    rng = np.random.default_rng(seed)
    weights = rng.multinomial(len(names), np.full(len(names), 1 / len(names)), _RESAMPLES)
    weights = np.concatenate([np.ones((1, len(names)), int), weights])  # the first is no resample
    sizes = weights @ np.bincount(codes)  # (1 + resamples,)
    summaries: dict[str, AuditSummary] = {}
    first: NDArray[np.float64] | None = None
    for name, each in found.found.items():
        sums = np.stack([np.bincount(codes, row, len(names)) for row in each.hit])  # (rows, C)
        recall = weights @ sums.T / sizes[:, None]  # (1 + resamples, rows)
        at = {row: recall[:, n] for n, row in enumerate(ROWS)}
        with np.errstate(divide="ignore", invalid="ignore"):
            kept = {
                row: np.where(at[CLEAN] > 0, values / at[CLEAN], np.nan)
                for row, values in at.items()
            }
        score = np.mean([kept[row] for row in counted(colour)], axis=0)
        summaries[name] = AuditSummary(
            rows={row: _estimate(values) for row, values in at.items()},
            precision=dict(zip(ROWS, each.precision.mean(axis=1).tolist(), strict=True)),
            kept={row: _estimate(values) for row, values in kept.items()},
            nuisances=_estimate(score),
            swap=_estimate(kept[OTHER]),
            gap=_estimate(at[OWN] - at[OTHER]),
            alone=_estimate(at[NO_OBJECT]),
            chance=_chance(found),
            same_background=_share(found, each, CLEAN, found.queries, backgrounds),
            pasted_background=_share(found, each, OTHER, found.donors[:, 1], backgrounds),
            difference=None if first is None else _estimate(score - first),
        )
        first = score if first is None else first
    return summaries


def _estimate(values: NDArray[np.float64]) -> Estimate:
    return Estimate.of(values[0], values[1:])


def _chance(found: Audit) -> float:
    """R@1 of guessing: the mean share of the query's class among the images that are searched."""
    counts = np.bincount(found.gallery.labels)[found.labels]
    return float(np.mean((counts - 2) / (len(found.gallery.paths) - 3)))


def _share(
    found: Audit,
    each: QueryResults,
    row: str,
    shown: NDArray[np.intp],  # (Q,), the gallery images whose background each query shows
    backgrounds: Sequence[str] | None,
) -> Share | None:
    if backgrounds is None:
        return None
    names = np.asarray(backgrounds)
    place = ROWS.index(row)
    wrong = np.flatnonzero(~each.hit[place])
    if not len(wrong):
        return Share(0, float("nan"), float("nan"))
    like = names[each.first[place, wrong]] == names[shown[wrong]]
    others = found.gallery.labels[None, :] != found.labels[wrong][:, None]  # (W, G)
    same = names[None, :] == names[shown[wrong]][:, None]
    chance = (others & same).sum(axis=1) / others.sum(axis=1)
    return Share(len(wrong), float(like.mean()), float(chance.mean()))


def audit_section(
    found: Audit, summaries: dict[str, AuditSummary], dataset: str, colour: bool = False
) -> Section:
    score = counted(colour)
    note = "" if colour else _COLOUR
    return Section(
        name="audit",
        title=f"Audit on {dataset}",
        about=(
            f"{len(found.queries)} images of {dataset} are changed in one way at a time and"
            f" searched among {len(found.gallery.paths)} unchanged images of"
            f" {len(found.gallery.names)} classes. Their own original and the images that lend them"
            " a background are never found. R@1 and MAP@R are in percent. Kept is R@1 divided by"
            " R@1 of the unchanged images. The ranges in brackets are 95 % intervals from"
            f" resampling classes. Object masks: {found.images.masks.kind}.\n\n"
            f"Kept under nuisances is the mean of kept over {', '.join(score)}.{note}"
            " Kept before another background is measured with objects that were put before the"
            " background of an image of another class. Own minus other background is R@1 before a"
            " background of the own class minus R@1 before one of another class. It shows how much"
            " the background says about the class. Background alone is R@1 with the object painted"
            " over; compare it with chance."
        ),
        tables=[headlines(summaries, found.images.masks.kind), details(summaries)],
        pictures=[
            (
                _chart(summaries),
                "R@1 divided by R@1 of the unchanged images, with 95 % intervals.",
            ),
            *(
                (failures(found, name, colour), f"{name}: the worst failure of each change.")
                for name in found.found
            ),
        ],
        values={
            "dataset": dataset,
            "queries": len(found.queries),
            "gallery": len(found.gallery.paths),
            "masks": found.images.masks.kind,
            "size": found.images.size,
            "seed": found.images.seed,
            "counted": score,
            "strengths": {each.name: each.about for each in INTERVENTIONS},
            "models": summaries,
        },
    )


def headlines(summaries: dict[str, AuditSummary], masks: str) -> Table:
    """The table of the main numbers, with a column for each model."""
    several = list(summaries.values())
    rows = [
        ("R@1 as they are", *(each.rows[CLEAN].percent(1) for each in several)),
        ("kept under nuisances", *(each.nuisances.percent(1) for each in several)),
    ]
    if len(several) > 1:
        less = ("" if s.difference is None else s.difference.percent(1) for s in several)
        rows.append(("... minus that of the first model", *less))
    rows += [
        ("kept before another background", *(each.swap.percent(1) for each in several)),
        ("own minus other background", *(each.gap.percent(1) for each in several)),
        (
            f"background alone (chance {100 * several[0].chance:.1f})",
            *(each.alone.percent(1) for each in several),
        ),
    ]
    if any(each.same_background is not None for each in several):
        rows += [
            ("wrong hits: query's background", *(_as_text(s.same_background) for s in several)),
            ("wrong hits: pasted background", *(_as_text(s.pasted_background) for s in several)),
        ]
    title = f"In percent; object masks: {masks}"
    return Table(title=title, columns=("", *summaries), rows=tuple(rows))


def _as_text(share: Share | None) -> str:
    if share is None or not share.wrong:
        return ""
    return f"{100 * share.share:.0f} % of {share.wrong} (chance {100 * share.chance:.0f})"


def details(summaries: dict[str, AuditSummary]) -> Table:
    """The table of all rows. With more than two models, only the JSON file has all numbers."""
    short = len(summaries) > 2
    columns = ["image"]
    for name in summaries:
        prefix = f"{name}: " if len(summaries) > 1 else ""
        columns += [f"{prefix}R@1, kept"] if short else [f"{prefix}R@1", "MAP@R", "kept"]
    rows = []
    for row in ROWS:
        cells = [row]
        for each in summaries.values():
            recall, kept = f"{100 * each.rows[row].value:.1f}", each.kept[row]
            if short:
                cells.append(f"{recall}, {100 * kept.value:.0f} %")
            else:
                cells += [recall, f"{100 * each.precision[row]:.1f}", kept.percent()]
        rows.append(tuple(cells))
    return Table(columns=tuple(columns), rows=tuple(rows))


def _chart(summaries: dict[str, AuditSummary]) -> Image.Image:
    rows = [row for row in ROWS if row != CLEAN]

    def paint(panels: list[Axes]) -> None:
        grouped(
            panels[0],
            rows,
            {
                name: [100 * each.kept[row].value for row in rows]
                for name, each in summaries.items()
            },
            {
                name: [(100 * each.kept[row].low, 100 * each.kept[row].high) for row in rows]
                for name, each in summaries.items()
            },
        )
        panels[0].axhline(100, color="#888888", linewidth=1)
        panels[0].set(ylabel="R@1 kept, %", ylim=(0, None))
        if len(summaries) > 1:
            panels[0].legend(
                fontsize=8, loc="lower left", bbox_to_anchor=(0, 1), ncols=min(4, len(summaries))
            )

    return draw(paint, width=8.5, height=3.8)


def failures(found: Audit, name: str, colour: bool = False) -> Image.Image:
    """The queries that were right, are wrong after a change, and are wrong by the largest margin.

    Each change and each query is shown once. Changes of colour are left out unless ``colour``, and
    so is the background alone, where there is no object to be found.
    """
    each = found.found[name]
    shown = np.isin(ROWS, [*counted(colour), OWN, OTHER, NO_BACKGROUND])
    lost = each.hit[0] & ~each.hit & shown[:, None]
    order = np.argsort(-np.where(lost, each.margin, -np.inf), axis=None, kind="stable")
    taken: list[tuple[int, int]] = []
    for row, query in zip(*np.unravel_index(order, lost.shape), strict=True):
        if len(taken) == _FAILURES or not lost[row, query]:
            break
        if row not in {r for r, _ in taken} and query not in {q for _, q in taken}:
            taken.append((int(row), int(query)))
    heads = ["query", "changed", "found before", "found now"]
    if not taken:
        return sheet([[Cell(None, "no query was lost")]], side=120)
    return sheet([_failure(found, each, row, query) for row, query in taken], heads, side=120)


def _failure(found: Audit, each: QueryResults, row: int, query: int) -> list[Cell]:
    images, split = found.images, found.gallery
    index = int(found.queries[query])
    changed = list(images.changed(index, found.donors[query].tolist()))[row]

    def hit(place: int, frame: tuple[int, int, int]) -> Cell:
        first = int(each.first[place, query])
        return Cell(images.load(first), split.names[split.labels[first]], frame)

    return [
        Cell(images.load(index), split.names[split.labels[index]]),
        Cell(changed, ROWS[row]),
        hit(0, GREEN),
        hit(row, RED),
    ]
