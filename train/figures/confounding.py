"""`couce analyze confounding`: what explains the demo set's embeddings, and what the gate selects.

The class, the background and the light of each drawn image are known. For each of these factors,
the analysis measures the share of the embeddings' variance that it explains: η², the variance
between the groups of the factor divided by the whole variance. The gate of ODBA takes a channel for
background if it varies within classes and not between them. The correlation over the channels
between the gate and the share of each factor shows what the gate really selects. The norms of the
gradients that reach the embeddings show how much the terms of the objective count.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from couce.data.base import Split
from couce.data.demo import example_of, read_plan
from couce.data.images import ImageStore
from couce.errors import CouceError
from couce.method import CouCE
from couce.network import Normalise
from couce.report.section import Section, Table
from couce.train.batches import balanced_epoch, training_batches
from couce.train.figures.runs import TrainedRun, embed_split

FACTORS = ("class", "background", "light")


class Explained(NamedTuple):
    shares: dict[str, float]  # of the variance, by factor
    gate: dict[str, float] | None  # its correlation with each factor's share


class Confounding(NamedTuple):
    train: Explained
    test: Explained
    gate: tuple[float, float, float] | None  # smallest, median and largest value
    gradients: dict[str, float]  # the norm for each weighted term, divided by that of the base loss


def analyse(run: TrainedRun) -> Confounding:
    """The analysis of one run."""
    if run.data.name != "demo":
        raise CouceError(
            f"{run.name} was not trained on the demo set, where alone the backgrounds are known;"
            " give a run of `couce train demo`"
        )
    odba = run.objective.odba
    gate = None if odba is None else odba.gate.numpy()
    plan = read_plan(run.data.root)

    def explain(split: Split) -> Explained:
        rows, split = embed_split(run, split)
        shown = [example_of(path, plan) for path in split.paths]
        groups = ([e.label for e in shown], [e.background for e in shown], [e.light for e in shown])
        shares, by_channel = {}, {}
        for factor, names in zip(FACTORS, groups, strict=True):
            between, total = variances(rows, np.unique(names, return_inverse=True)[1])
            shares[factor] = float(between.sum() / total.sum())
            by_channel[factor] = between / np.maximum(total, 1e-12)
        if gate is None or np.ptp(gate) == 0:
            return Explained(shares, None)
        correlation = {f: float(np.corrcoef(gate, by_channel[f])[0, 1]) for f in FACTORS}
        return Explained(shares, correlation)

    return Confounding(
        train=explain(run.learned),
        test=explain(run.data.test),
        gate=None if gate is None else (gate.min(), float(np.median(gate)), gate.max()),
        gradients=_gradients(run),
    )


def variances(
    rows: NDArray[np.float32], groups: NDArray[np.intp]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """For each channel of ``rows`` (N, d) the variance between ``groups`` (N,), and all variance.

    >>> variances(np.array([[0.0], [2.0], [10.0], [12.0]]), np.array([0, 0, 1, 1]))
    (array([25.]), array([26.]))
    """
    rows = rows.astype(np.float64)
    counts = np.bincount(groups)
    means = np.zeros((len(counts), rows.shape[1]))
    np.add.at(means, groups, rows)
    means /= np.maximum(counts, 1)[:, None]
    centre = rows.mean(axis=0)
    between = (counts[:, None] * (means - centre) ** 2).sum(axis=0) / len(rows)
    return between, rows.var(axis=0)


def _gradients(run: TrainedRun) -> dict[str, float]:
    settings, objective, labels = run.settings, run.objective, run.learned.labels
    store = ImageStore(run.learned, run.preprocess, workers=2)
    plan = balanced_epoch(labels, settings.batch_classes, settings.batch_images, 0, 0)[:1]
    (batch,) = training_batches(store, labels, plan, 0, 0)
    images = Normalise(run.preprocess)(torch.from_numpy(batch.pixels)).to(run.device)
    with torch.no_grad():
        m, m_tilde = run.network.views(images, _seeded(objective), objective.mixed)
    m, m_tilde = m.cpu(), None if m_tilde is None else m_tilde.cpu()
    m.requires_grad_(True)
    parts: dict[str, Tensor] = objective.parts(m, torch.from_numpy(batch.labels), m_tilde)
    norms = {
        name: objective.weights[name]
        * torch.autograd.grad(part, m, retain_graph=True)[0].norm().item()
        for name, part in parts.items()
    }
    return {name: norm / norms["dml"] for name, norm in norms.items()}


def _seeded(objective: CouCE) -> Callable[[Tensor], Tensor] | None:
    """The intervention, with the same random draw at each call."""
    msrci = objective.intervention
    return None if msrci is None else lambda maps: msrci(maps, torch.Generator().manual_seed(0))


def confounding(runs: Sequence[TrainedRun]) -> Section:
    found = {run.name: analyse(run) for run in runs}
    rows = []
    for name, each in found.items():
        gate = "" if each.gate is None else " ".join(f"{value:.2f}" for value in each.gate)
        gradients = " ".join(f"{n} {v:.4f}" for n, v in each.gradients.items() if n != "dml")
        for half, explained in (("train", each.train), ("test", each.test)):
            cells = (
                f"{100 * explained.shares[factor]:.0f}"
                + ("" if explained.gate is None else f" ({explained.gate[factor]:+.2f})")
                for factor in FACTORS
            )
            last = (gate, gradients) if half == "train" else ("", "")
            rows.append((name if half == "train" else "", half, *cells, *last))
    return Section(
        name="confounding",
        title="What explains the embeddings of the demo set",
        about=(
            "The share of the embeddings' variance, in percent, that class, background and light"
            " explain (η²). In brackets: the correlation, over the channels, of ODBA's gate with"
            " this share. Gate: its smallest, median and largest value. Gradients: the norm of the"
            " gradient of each weighted term on the clean embeddings of one batch, divided by that"
            " of the base loss."
        ),
        tables=[
            Table(
                columns=("run", "half", *FACTORS, "gate", "gradients / base loss"),
                rows=tuple(rows),
            )
        ],
        values={
            name: {
                "train": each.train,
                "test": each.test,
                "gate": each.gate,
                "gradients": each.gradients,
            }
            for name, each in found.items()
        },
    )
