"""`couce analyze dictionary`: what ODBA's dictionary holds (paper, Sec. odba_analysis).

The analysis shows the gate of each channel, atoms (rows of the dictionary) with the training images
nearest to them, and how many directions the dictionary spans. This number is the effective rank
(Roy and Vetterli, 2007) of the newest k rows, for growing k.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from matplotlib.axes import Axes
from numpy.typing import NDArray

from couce.data.base import Split
from couce.errors import CouceError
from couce.method import ODBA
from couce.preprocess import Preprocess, open_image
from couce.report.plots import Cell, draw, logarithmic, sheet
from couce.report.section import Section, Table
from couce.train.figures.runs import TrainedRun, embed_split, load_images, sample

Rows = NDArray[np.float32]


class Contents(NamedTuple):
    gate: Rows  # (d,)
    atoms: Rows  # (filled, d), newest first
    ranks: dict[int, float]  # effective rank of the newest k atoms
    attended: float  # how many atoms an embedding attends to: exp of the entropy of the weights


def effective_rank(rows: NDArray[np.floating]) -> float:
    """exp of the entropy of the singular values' shares: d for d equally strong directions.

    >>> effective_rank(np.eye(5))
    5.0
    """
    values = np.linalg.svd(np.asarray(rows, np.float64), compute_uv=False)
    shares = values[values > 0] / max(values.sum(), 1e-300)
    return float(np.round(np.exp(-np.sum(shares * np.log(shares))), 12)) if len(shares) else 0.0


def newest_first(odba: ODBA) -> Rows:
    """The filled rows of the queue, from the newest to the oldest."""
    filled, pointer = int(odba.filled), int(odba.pointer)
    order = (pointer - 1 - np.arange(filled)) % odba.capacity
    return odba.dictionary.numpy()[order]


def spread_atoms(atoms: Rows, count: int) -> list[int]:
    """The indices of ``count`` atoms that lie far from each other.

    The first one is nearest to the mean. Each further one is the farthest from those taken so far.
    """
    centre = atoms.mean(axis=0)
    taken = [int(np.argmax(atoms @ centre))]
    closeness = atoms @ atoms[taken[0]]
    while len(taken) < min(count, len(atoms)):
        taken.append(int(np.argmin(closeness)))
        closeness = np.maximum(closeness, atoms @ atoms[taken[-1]])
    return taken


def contents(run: TrainedRun, rows: Rows) -> Contents:
    """What the dictionary holds. ``rows`` (N, d) are the embeddings that attend to it."""
    odba = run.objective.odba
    if odba is None or not int(odba.filled):
        raise CouceError(
            f"the dictionary of {run.name} is missing or empty; give a run that trained with ODBA"
        )
    atoms = newest_first(odba)
    sizes = [2**n for n in range(4, 20) if 2**n < len(atoms)] + [len(atoms)]
    logits = rows @ atoms.T / np.sqrt(atoms.shape[1])
    weights = torch.softmax(torch.from_numpy(logits), dim=1).double()
    entropy = -(weights * weights.clamp(min=1e-300).log()).sum(dim=1)
    return Contents(
        gate=odba.gate.numpy(),
        atoms=atoms,
        ranks={size: effective_rank(atoms[:size]) for size in sizes},
        attended=float(entropy.exp().mean()),
    )


def dictionary(runs: Sequence[TrainedRun], atoms: int = 6, images: int = 400) -> Section:
    """The gates and ranks of all runs, and the atoms of the first one."""
    found = {}
    for run in runs:
        split = sample(run.learned, images, images // 4)
        unit, split = embed_split(run, split)
        found[run.name] = (contents(run, _queries(run, split, unit)), unit, split)
    first, unit, split = found[runs[0].name]
    gated = unit * first.gate
    gated /= np.maximum(np.linalg.norm(gated, axis=1, keepdims=True), 1e-12)
    chosen = spread_atoms(first.atoms, atoms)
    nearest = np.argsort(-(first.atoms[chosen] @ gated.T), axis=1, kind="stable")[:, :7]

    def paint(panels: list[Axes]) -> None:
        for name, (each, _, _) in found.items():
            panels[0].plot(np.sort(each.gate)[::-1], label=name)
            panels[1].plot(list(each.ranks), list(each.ranks.values()), "o-", label=name)
        panels[0].set(
            title="gate, channels sorted by its value", xlabel="channel", ylim=(-0.02, 1.02)
        )
        panels[1].set(title="effective rank of the newest k atoms", xlabel="k", xscale="log")
        logarithmic(panels[1].xaxis)
        panels[1].legend(fontsize=7)

    picture = sheet(
        [
            [_cell(split, int(n), f"{float(first.atoms[atom] @ gated[n]):.2f}") for n in row]
            for atom, row in zip(chosen, nearest, strict=True)
        ],
        heads=["nearest", *("" for _ in range(nearest.shape[1] - 1))],
        side=84,
    )
    return Section(
        name="dictionary",
        title="What the dictionary holds",
        about=(
            "The gate w of ODBA for each channel (1: taken for background), the effective rank of"
            " the dictionary, and the number of atoms (its rows) that an embedding attends to. This"
            " number is the exponential of the entropy of the attention weights. It is the number"
            " of all atoms if an embedding averages over them. If the rank stops growing with k,"
            " more rows add no new directions.\n\n"
            f"Below is a row for each of {len(chosen)} atoms of {runs[0].name} that lie far from"
            " each other. It shows the training images whose gated embeddings are nearest to the"
            " atom, with their cosines. If an atom stands for a background, its row shows one"
            " background and many classes."
        ),
        tables=[
            Table(
                columns=(
                    "run",
                    "K",
                    "filled",
                    "effective rank",
                    "attended atoms",
                    "gate: smallest, median, largest",
                ),
                rows=tuple(
                    (
                        run.name,
                        str(run.settings.odba.capacity),
                        str(len(each.atoms)),
                        f"{list(each.ranks.values())[-1]:.1f}",
                        f"{each.attended:.0f}",
                        f"{each.gate.min():.2f} {np.median(each.gate):.2f} {each.gate.max():.2f}",
                    )
                    for run in runs
                    for each in (found[run.name][0],)
                ),
            )
        ],
        pictures=[
            (draw(paint, columns=2), "The gate's values and the dictionary's effective rank."),
            (
                picture,
                "Each row shows the training images nearest to one atom, with their cosines.",
            ),
        ],
        values={
            run.name: {
                "capacity": run.settings.odba.capacity,
                "gate": each.gate,
                "ranks": each.ranks,
                "attended": each.attended,
            }
            for run in runs
            for each in (found[run.name][0],)
        },
    )


@torch.inference_mode()
def _queries(run: TrainedRun, split: Split, unit: Rows) -> Rows:
    """The queries of the dictionary in training: raw embeddings, or unit ones if so set."""
    if run.settings.odba.attention == "unit":
        return unit
    return np.concatenate([run.network(x).cpu().numpy() for x, _ in load_images(run, split)])


def _cell(split: Split, index: int, cosine: str) -> Cell:
    square = Preprocess(resize=128, crop=128)
    picture = square.pixels(open_image(split.paths[index], shortest=128))
    return Cell(picture, f"{cosine} {split.names[split.labels[index]]}")
