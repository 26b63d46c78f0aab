"""`couce analyze confounding`: what an embedding of the demo set is made of, and what the gate makes of it.

On drawn pictures it is known what stands where: class, background and light of each. For each of these
this says which share of the embeddings' variance it explains (η², the variance between its groups by all
of it). The variance gate of ODBA takes for background what varies within classes and not between them; its
correlation, over the channels, with what each factor explains shows what it really selects. And the norms of
the gradients that reach the embeddings show what the terms of the objective weigh beside each other.
"""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from couce.checkpoint import load_network
from couce.errors import CouceError
from couce.losses import build_loss
from couce.method import CouCE
from couce.network import EmbeddingNetwork, Normalise
from couce.train.batches import balanced_epoch, training_batches
from couce.train.data import open_dataset
from couce.train.data.base import Split
from couce.train.data.demo import example_of, read_plan
from couce.train.evaluate import embed
from couce.train.images import ImageStore
from couce.train.settings import TrainSettings

FACTORS = ("class", "background", "light")


class Explained(NamedTuple):
    shares: dict[str, float]  # of the variance, by factor
    gate: dict[str, float] | None  # correlation with each factor's share over the channels


class Confounding(NamedTuple):
    train: Explained
    test: Explained
    gate: tuple[float, float, float] | None  # least, middle and largest value
    gradients: dict[str, float]  # norm of each weighted term's gradient, beside the base loss's


def analyse(run: Path) -> Confounding:
    """Of the run's last epoch."""
    network, preprocess, content = load_network(run / "last.pt")
    settings = TrainSettings.parse(content["settings"])
    if content["data"]["name"] != "demo":
        raise CouceError(f"{run} was not trained on the demo set, whose backgrounds are known")
    data = open_dataset(**content["data"])
    learned = np.isin(data.train.names, content["classes"])  # others were held out
    train = data.train.select(learned[data.train.labels])
    objective = _objective(settings, content, len(train.names))
    gate = None if objective.odba is None else objective.odba.gate.numpy()
    plan = read_plan(data.root)

    def explain(split: Split) -> Explained:
        rows, _ = embed(network, ImageStore(split, preprocess, workers=2), torch.device("cpu"))
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

    store = ImageStore(train, preprocess, workers=2)
    return Confounding(
        train=explain(train),
        test=explain(data.test),
        gate=None if gate is None else (gate.min(), float(np.median(gate)), gate.max()),
        gradients=_gradients(network, objective, store, settings),
    )


def variances(
    rows: NDArray[np.float32], groups: NDArray[np.intp]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Of each channel of ``rows`` (N, d): the variance between ``groups`` (N,), and all of it.

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


def _objective(settings: TrainSettings, content: dict[str, Any], classes: int) -> CouCE:
    loss = build_loss(settings.loss, classes, settings.dim, **settings.loss_options)
    objective = CouCE(loss, settings)
    objective.load_state_dict(content["objective"])
    return objective.eval()  # nothing is enqueued by looking


def _gradients(
    network: EmbeddingNetwork, objective: CouCE, store: ImageStore, settings: TrainSettings
) -> dict[str, float]:
    labels = store.split.labels
    plan = balanced_epoch(labels, settings.batch_classes, settings.batch_images, 0, 0)[:1]
    (batch,) = training_batches(store, labels, plan, 0, 0)
    images = Normalise(store.preprocess)(torch.from_numpy(batch.pixels))
    network.eval()
    with torch.no_grad():
        m, m_tilde = network.views(images, objective.intervention)
    m.requires_grad_(True)
    parts: dict[str, Tensor] = objective.parts(m, torch.from_numpy(batch.labels), m_tilde)
    norms = {
        name: objective.weights[name]
        * torch.autograd.grad(part, m, retain_graph=True)[0].norm().item()
        for name, part in parts.items()
    }
    return {name: norm / norms["dml"] for name, norm in norms.items()}
