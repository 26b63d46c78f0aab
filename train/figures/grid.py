"""`couce analyze grid`: right and wrong hits of some queries (paper, Fig. retrieval)."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from couce.data.base import Split
from couce.errors import CouceError
from couce.preprocess import Preprocess, open_image
from couce.report.plots import GREEN, RED, Cell, sheet
from couce.report.section import Section, Table
from couce.train.figures.runs import TrainedRun, embed_split, sample

TOP = 5


class Neighbours(NamedTuple):
    neighbours: NDArray[np.intp]  # (N, TOP), by rank, without the query itself
    right: NDArray[np.bool_]  # (N, TOP), whether a neighbour has the class of the query


def search(rows: NDArray[np.float32], labels: NDArray[np.intp], top: int = TOP) -> Neighbours:
    """The ``top`` nearest neighbours of each embedding (N, d) of unit length among the others."""
    closeness = rows @ rows.T
    np.fill_diagonal(closeness, -np.inf)
    neighbours = np.argsort(-closeness, axis=1, kind="stable")[:, : min(top, len(rows) - 1)]
    return Neighbours(neighbours, labels[neighbours] == labels[:, None])


def choose(found: Sequence[Neighbours], count: int, differing: bool, seed: int) -> NDArray[np.intp]:
    """The indices of ``count`` random queries.

    If ``differing``, the first hit of each is right in some runs and wrong in others. The queries
    that different runs get right take turns, so the choice favours no run.
    """
    rng = np.random.default_rng(seed)
    first = np.stack([each.right[:, 0] for each in found])  # (runs, N)
    order = rng.permutation(first.shape[1])
    if not differing:
        return order[:count]
    patterns: dict[tuple[bool, ...], list[int]] = {}
    for query in order:
        column = tuple(first[:, query].tolist())
        if len(set(column)) > 1:
            patterns.setdefault(column, []).append(int(query))
    taken: list[int] = []
    while len(taken) < count and any(patterns.values()):
        for column in sorted(patterns):
            if patterns[column] and len(taken) < count:
                taken.append(patterns[column].pop(0))
    return np.array(taken, int)


def grid(
    runs: Sequence[TrainedRun],
    queries: int = 6,
    images: int = 600,
    differing: bool = False,
    seed: int = 0,
) -> Section:
    split = sample(runs[0].data.test, images)
    found = []
    for run in runs:
        rows, decoded = embed_split(run, split)
        if len(decoded.paths) < len(split.paths):
            raise CouceError(
                "some test images cannot be decoded; repair or remove those that `couce data check`"
                " lists"
            )
        found.append(search(rows, split.labels))
    chosen = choose(found, queries, differing, seed)
    if not len(chosen):
        raise CouceError("all runs get the same queries right; leave out --differing")
    picture = sheet(
        [
            [
                _cell(split, query, run.name, None),
                *(
                    _cell(split, int(n), split.names[split.labels[n]], GREEN if right else RED)
                    for n, right in zip(each.neighbours[query], each.right[query], strict=True)
                ),
            ]
            for query in chosen.tolist()
            for run, each in zip(runs, found, strict=True)
        ],
        heads=["query", *(str(rank) for rank in range(1, TOP + 1))],
    )
    how = "chosen from those that the runs answer differently" if differing else "chosen at random"
    return Section(
        name="grid",
        title="The first hits of some queries",
        about=(
            f"{len(chosen)} queries, {how} (seed {seed}), with the first {TOP} hits of each run"
            f" among {len(split.paths)} test images of {len(split.names)} classes. Green hits have"
            " the class of the query, red ones another. R@1 is over all of these images. It is"
            " higher than on the whole test half if these are fewer images."
        ),
        tables=[
            Table(
                columns=("run", "R@1 here", f"own class among the first {TOP}"),
                rows=tuple(
                    (run.name, f"{each.right[:, 0].mean():.1%}", f"{each.right.mean():.1%}")
                    for run, each in zip(runs, found, strict=True)
                ),
            )
        ],
        pictures=[
            (picture, "The query is on the left, above the name of the run. Hits are by rank.")
        ],
        values={
            "gallery": len(split.paths),
            "differing": differing,
            "runs": {
                run.name: {
                    "R@1": each.right[:, 0].mean(),
                    "queries": [
                        {
                            "query": str(split.paths[q]),
                            "found": [str(split.paths[n]) for n in each.neighbours[q]],
                            "right": each.right[q],
                        }
                        for q in chosen.tolist()
                    ],
                }
                for run, each in zip(runs, found, strict=True)
            },
        },
    )


def _cell(split: Split, index: int, text: str, frame: tuple[int, int, int] | None) -> Cell:
    square = Preprocess(resize=128, crop=128)
    return Cell(square.pixels(open_image(split.paths[index], shortest=128)), text, frame)
