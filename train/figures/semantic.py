"""`couce analyze semantic`: how much of the meaning the intervention keeps.

Paper, Table msrci_semantic.
"""

from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from matplotlib.axes import Axes
from numpy.typing import NDArray
from torch import Tensor

from couce.report.plots import draw, grouped
from couce.report.section import Section, Table
from couce.train.figures.fourier import interventions
from couce.train.figures.runs import TrainedRun, load_images, sample

Rows = NDArray[np.float32]


class Kept(NamedTuple):
    cosine: float  # the mean cosine of m and m̃
    cka: float
    proxy: float  # the share of images whose nearest proxy stays the same
    mean: float  # the share of images whose nearest class mean stays the same


def linear_cka(x: NDArray[np.floating], y: NDArray[np.floating]) -> float:
    """Linear centred kernel alignment of rows x (N, d) and y (N, e) (Kornblith et al., ICML 2019).

    ``‖Yᵀ X‖² / (‖Xᵀ X‖ · ‖Yᵀ Y‖)`` of centred columns. It is 1 if y is a rotated and scaled x.

    >>> x = np.array([[0.0, 1.0], [2.0, 0.0], [1.0, 5.0]])
    >>> round(linear_cka(x, 3 * x[:, ::-1]), 12)
    1.0
    """
    x, y = (z.astype(np.float64) - z.mean(axis=0, dtype=np.float64) for z in (x, y))
    scale = np.linalg.norm(x.T @ x) * np.linalg.norm(y.T @ y)
    return float(np.linalg.norm(y.T @ x) ** 2 / scale) if scale else float("nan")


def nearest_of_others(rows: Rows, unit: Rows, labels: NDArray[np.intp]) -> NDArray[np.intp]:
    """For each of ``rows`` (N, d) the class with the nearest mean of ``unit`` (N, d).

    Row n is compared with the mean of its class without row n of ``unit``.

    >>> unit = np.eye(4, dtype=np.float32)[[0, 0, 1, 1]]
    >>> nearest_of_others(unit, unit, np.array([0, 0, 1, 1]))
    array([0, 0, 1, 1])
    """
    classes, own = np.unique(labels, return_inverse=True)
    sums = np.stack([unit[own == code].sum(axis=0) for code in range(len(classes))])
    everyone = np.arange(len(unit))
    cosines = rows @ _unit(sums).T
    cosines[everyone, own] = (rows * _unit(sums[own] - unit)).sum(axis=1)
    return np.argmax(cosines, axis=1)


def _unit(rows: Rows) -> Rows:
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)


@torch.inference_mode()
def measure(run: TrainedRun, images: int, seed: int) -> dict[str, Kept]:
    """What each schedule keeps. A class mean is that of the clean embeddings of other images."""
    split = sample(run.data.test, images, images // 4)
    modules = interventions(run)
    clean: list[Tensor] = []
    changed: dict[str, list[Tensor]] = {name: [] for name in modules}
    seen: list[int] = []
    for number, (batch, indices) in enumerate(load_images(run, split)):
        maps = run.network.backbone.stage1(batch)
        clean.append(run.network.tail(maps).cpu())
        for name, module in modules.items():
            generator = torch.Generator().manual_seed(seed + number)
            changed[name].append(run.network.tail(module(maps, generator)).cpu())
        seen += indices
    m, labels = torch.cat(clean), split.labels[seen]
    unit = F.normalize(m, dim=1).numpy()

    def proxy(x: Tensor) -> NDArray[np.intp]:
        return run.objective.loss.similarities(x).argmax(dim=1).numpy()

    def nearest_mean(rows: Rows) -> NDArray[np.intp]:
        return nearest_of_others(rows, unit, labels)

    def compare(m_tilde: Tensor) -> Kept:
        other = F.normalize(m_tilde, dim=1).numpy()
        return Kept(
            cosine=float((unit * other).sum(axis=1).mean()),
            cka=linear_cka(m.numpy(), m_tilde.numpy()),
            proxy=float(np.mean(proxy(m) == proxy(m_tilde))),
            mean=float(np.mean(nearest_mean(unit) == nearest_mean(other))),
        )

    return {name: compare(torch.cat(parts)) for name, parts in changed.items()}


def semantic(run: TrainedRun, images: int = 400, seed: int = 0) -> Section:
    found = measure(run, images, seed)
    titles = ("cosine", "linear CKA", "same nearest proxy", "same nearest class mean")

    def paint(panels: list[Axes]) -> None:
        names = [title.replace("nearest ", "nearest\n") for title in titles]
        grouped(panels[0], names, {name: list(kept) for name, kept in found.items()})
        panels[0].set(ylabel="clean against intervened")
        panels[0].legend(fontsize=8, loc="best")

    return Section(
        name="semantic",
        title="How much of the meaning the intervention keeps",
        about=(
            f"This compares clean and intervened embeddings of about {images} test images by"
            f" {run.name}, for each schedule of MSRCI (custom is the paper's). The table has the"
            " mean cosine, linear CKA, and two shares of images: those whose nearest proxy stays"
            " the same, and those whose nearest class mean does. A proxy stands for a training"
            " class, as in the paper. A class mean is that of the other images of a test class. A"
            " value of 1 means that nothing is lost."
        ),
        tables=[
            Table(
                columns=("schedule", *titles),
                rows=tuple(
                    (name, f"{k.cosine:.4f}", f"{k.cka:.4f}", f"{k.proxy:.1%}", f"{k.mean:.1%}")
                    for name, k in found.items()
                ),
            )
        ],
        pictures=[(draw(paint, width=6.5), "Clean against intervened embeddings, by schedule.")],
        values={"run": run.name, "kept": found},
    )
