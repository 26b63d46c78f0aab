"""The background-bias protocol of the field: all images before other backgrounds.

*On Background Bias in Deep Metric Learning* (Kobs and Hotho, ICMV 2022). Each image of the test
half, query and gallery alike, is put before a random other background, and the metrics are measured
again. Ours differs in the backgrounds: without a folder of them, they are those of other classes of
the same set, with the object painted over.
"""

import io
import statistics
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from couce.audit.measure import AuditImages, ShowProgress, embed_views, filling
from couce.audit.models import Model
from couce.data.base import Split
from couce.data.folders import image_files
from couce.errors import CouceError
from couce.machine.cores import usable_cores
from couce.masks import Masks
from couce.masks.backgrounds import LEAST, Pixels, paste
from couce.metrics import retrieval_metrics
from couce.preprocess import ImageError, open_image
from couce.report.plots import Cell, sheet
from couce.report.section import Section, Table

_SHOWN = 6  # images in the picture of the report
_METRICS = ("R@1", "MAP@R")


class Replaced(NamedTuple):
    """The metrics of one model."""

    clean: dict[str, float]
    drawings: list[dict[str, float]]  # before other backgrounds, once for each drawing

    def mean(self, metric: str) -> float:
        return statistics.fmean(each[metric] for each in self.drawings)

    def deviation(self, metric: str) -> float:
        values = [each[metric] for each in self.drawings]
        return float(np.std(values, ddof=1)) if len(values) > 1 else 0.0

    def lost(self, metric: str) -> float:
        """The share of the clean value that is lost; NaN if there is none."""
        clean = self.clean[metric]
        return 1 - self.mean(metric) / clean if clean > 0 else float("nan")


class Backgrounds:
    """The backgrounds that images are put before, and which image gets which one.

    Args:
        images: the images of the test half.
        files: images of backgrounds. Without any, an image lends its own to other classes.
    """

    def __init__(self, images: AuditImages, files: Sequence[Path]) -> None:
        self._images, self._files = images, files
        self._kept: list[bytes | None] = []  # as JPEG, because all must fit into memory

    def prepare(self, progress: ShowProgress) -> None:
        count = len(self._files or self._images.split.paths)
        with ThreadPoolExecutor(usable_cores()) as threads:
            for done, each in enumerate(threads.map(self._one, range(count)), 1):
                self._kept.append(each)
                progress("backgrounds", done, count)

    def _one(self, index: int) -> bytes | None:
        try:
            if self._files:
                image = open_image(self._files[index], shortest=self._images.size)
                image.thumbnail((2 * self._images.size, 2 * self._images.size))
            else:
                image = self._images.background(index)
        except ImageError as error:
            warnings.warn(f"left out: {error}", stacklevel=2)
            return None
        content = io.BytesIO()
        image.save(content, "JPEG", quality=95)
        return content.getvalue()

    def draw(self, rng: np.random.Generator) -> NDArray[np.intp]:
        """For each image of the test half a background (N,), of another class or of a file."""
        usable = np.flatnonzero([each is not None for each in self._kept])
        labels = self._images.split.labels
        if self._files:
            if not len(usable):
                raise CouceError("none of the backgrounds could be read")
            return rng.choice(usable, len(labels))
        drawn = np.empty(len(labels), np.intp)
        for label in np.unique(labels):
            own = labels == label
            others = usable[labels[usable] != label]
            if not len(others):
                raise CouceError(
                    "no image of another class could be read, so there are no backgrounds"
                )
            drawn[own] = rng.choice(others, own.sum())
        return drawn

    def behind(self, index: int, pixels: Pixels) -> Pixels:
        """A background of those drawn, at the size of ``pixels``."""
        return filling(Image.open(io.BytesIO(self._kept[index] or b"")), pixels)


class Bias(NamedTuple):
    """What the protocol found."""

    found: dict[str, Replaced]  # by the name of the model
    images: AuditImages
    total: int  # how many images were searched
    without_mask: int  # of these, how many keep their background because no object is visible
    backgrounds: str  # where the backgrounds come from
    shown: list[list[Pixels]]  # some images, each as it is and in all drawings


def measure_bias(
    models: Sequence[Model],
    test: Split,
    masks: Masks,
    backgrounds: Path | None = None,
    drawings: int = 5,
    size: int = 256,
    seed: int = 0,
    progress: ShowProgress = lambda *_: None,
) -> Bias:
    """The metrics of each model on the images as they are, and before other backgrounds."""
    if len(test.names) < 2:
        raise CouceError("other backgrounds come from other classes; there must be at least two")
    if backgrounds is not None and not backgrounds.is_dir():
        raise CouceError(f"there is no folder of backgrounds at {backgrounds}; check the path")
    images = AuditImages(test, masks, size, seed)
    files = [] if backgrounds is None else image_files(backgrounds)
    if backgrounds is not None and not files:
        raise CouceError(f"there are no images in {backgrounds}; name a folder of backgrounds")
    others = Backgrounds(images, files)
    others.prepare(progress)
    rng = np.random.default_rng(seed)
    drawn = np.stack([others.draw(rng) for _ in range(drawings)], axis=1)  # (N, drawings)
    visible = np.ones(len(test.paths), bool)

    def views(index: int) -> Iterator[Pixels]:
        pixels = images.load(index)
        mask = images.mask(index, pixels)
        visible[index] = mask.mean() >= LEAST * 255
        yield pixels
        for other in drawn[index].tolist():
            behind = others.behind(other, pixels)
            yield paste(pixels, mask, behind) if visible[index] else pixels

    embedded, alive = embed_views(models, len(test.paths), views, partial(progress, "images"))
    if not np.any(alive & visible):
        raise CouceError(
            f"no mask covers {LEAST:.0%} of its image, so no background can be replaced; look at"
            f" the masks ({masks.kind})"
        )
    shown = rng.permutation(np.flatnonzero(alive & visible))[:_SHOWN]
    return Bias(
        found={
            model.name: Replaced(*_metrics(rows, test.labels[alive]))
            for model, rows in zip(models, embedded, strict=True)
        },
        images=images,
        total=int(alive.sum()),
        without_mask=int((alive & ~visible).sum()),
        backgrounds=(
            f"{len(files)} images of {backgrounds}"
            if files
            else "those of random images of other classes, whose objects are painted over"
        ),
        shown=[list(views(index)) for index in shown.tolist()],
    )


def _metrics(
    rows: NDArray[np.float32],  # (1 + drawings, N, d)
    labels: NDArray[np.intp],
) -> tuple[dict[str, float], list[dict[str, float]]]:
    clean, *drawings = (retrieval_metrics(each, labels, nmi=False) for each in rows)
    return clean, drawings


def bias_section(bias: Bias) -> Section:
    drawings = len(bias.shown[0]) - 1
    rows = [
        (
            name,
            *(f"{100 * each.clean[metric]:.2f}" for metric in _METRICS),
            *(f"{100 * each.mean(metric):.2f}" for metric in _METRICS),
            f"{100 * each.deviation('MAP@R'):.2f}",
            f"{100 * each.lost('MAP@R'):.1f}",
        )
        for name, each in bias.found.items()
    ]
    replaced = [f"{metric}, replaced" for metric in _METRICS]
    heads = ["as it is", *(f"drawing {number}" for number in range(1, drawings + 1))]
    return Section(
        name="background-bias",
        title="Before other backgrounds",
        about=(
            f"{bias.total} images are put before other backgrounds: {bias.backgrounds}. Queries and"
            f" gallery are both changed. This is drawn {drawings} times. The values are in percent:"
            " means over the drawings, the deviation of MAP@R between drawings, and the share of"
            f" the clean MAP@R that is lost. Object masks: {bias.images.masks.kind}. In"
            f" {bias.without_mask} images the mask covers less than {LEAST:.0%}; they keep their"
            " background. The protocol is that of Kobs and Hotho (2022)."
        ),
        tables=[
            Table(columns=("", *_METRICS, *replaced, "± of MAP@R", "MAP@R lost"), rows=tuple(rows))
        ],
        pictures=[
            (
                sheet([list(map(Cell, views)) for views in bias.shown], heads),
                "Images of the test half, each before the backgrounds that it got.",
            )
        ],
        values={
            "masks": bias.images.masks.kind,
            "backgrounds": bias.backgrounds,
            "size": bias.images.size,
            "seed": bias.images.seed,
            "images": bias.total,
            "without mask": bias.without_mask,
            "models": bias.found,
        },
    )
