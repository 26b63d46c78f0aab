"""Masks of the object in an image: drawn (demo set), annotated (a folder of masks), or estimated.

The estimate needs no model and no download. It takes the border of the image for background. At
first, a pixel counts as object if its colour is far from the colours of the border and if it is
near the centre. Then, in a few rounds, the colours of object and background are counted, and each
pixel is judged again by its colour, its place and its neighbours. GrabCut (Rother et al., 2004)
works in the same way, with mixture models instead of histograms and graph cuts instead of a blur.
The estimate is rough and finds one compact object near the centre.
"""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy import ndimage

from couce.data.base import DataSet
from couce.data.demo import Example, example_of, object_mask, read_plan
from couce.errors import CouceError
from couce.preprocess import open_image

_SIDE = 96  # pixels of the longer side at which masks are estimated
_LEVELS = 12  # how many levels each colour has in the histograms
_ROUNDS = 3


class Masks(NamedTuple):
    """``of(path, image)`` is the mask of an image, of its size and in mode L: 255 is the object."""

    kind: str
    of: Callable[[Path, Image.Image], Image.Image]


def open_masks(data: DataSet, folder: Path | None = None) -> Masks:
    """Masks from ``folder``. Without one, from the demo set, CUB's ``segmentations/`` or estimates.

    A folder has ``CLASS/NAME.png`` for the image ``CLASS/NAME.jpg``, white where the object is.
    """
    if folder is not None:
        if not folder.is_dir():
            raise CouceError(f"there is no folder of masks at {folder}")
        return Masks(f"annotated, in {folder.name}/", _from_folder(folder))
    plan = demo_plan(data)
    if plan is not None:
        return Masks(
            "drawn with the images",
            lambda path, image: object_mask(example_of(path, plan)).resize(image.size),
        )
    for base in (data.root, data.root / "CUB_200_2011"):
        if (base / "segmentations").is_dir():
            return Masks("annotated, in segmentations/", _from_folder(base / "segmentations"))
    return Masks("estimated from colours and place", lambda _, image: estimate_mask(image))


def demo_plan(data: DataSet) -> list[Example] | None:
    """What the images of a demo set show; None if ``data`` is not a demo set."""
    try:
        return read_plan(data.root) if data.root.is_dir() else None
    except CouceError:
        return None


def _from_folder(folder: Path) -> Callable[[Path, Image.Image], Image.Image]:
    def read(path: Path, image: Image.Image) -> Image.Image:
        found = folder / path.parent.name / f"{path.stem}.png"
        if not found.is_file():
            raise CouceError(f"the image {path} has no mask; add {found}")
        mask = open_image(found).convert("L")
        brightest = int(np.asarray(mask).max())
        # The mask may have class numbers, which would all count as background.
        if 0 < brightest < 128:
            raise CouceError(
                f"the brightest pixel of the mask {found} is {brightest}; save masks with 255 for"
                " the object and 0 for the background"
            )
        return mask.resize(image.size)

    return read


def estimate_mask(image: Image.Image) -> Image.Image:
    """An estimate of where the one object in the middle of ``image`` is."""
    scale = _SIDE / max(image.size)
    size = (max(8, round(image.width * scale)), max(8, round(image.height * scale)))
    colours = np.asarray(image.resize(size, Image.Resampling.BOX).convert("YCbCr"), np.float64)
    place = _place(*colours.shape[:2])
    belief = _far_from_border(colours) * place
    belief /= max(float(np.quantile(belief, 0.95)), 1e-9)
    belief = np.clip(belief, 0.02, 0.98)
    bins = np.ravel_multi_index(
        tuple((colours * (_LEVELS / 256)).astype(int).reshape(-1, 3).T), (_LEVELS,) * 3
    )
    for _ in range(_ROUNDS):
        inside, outside = _histogram(bins, belief), _histogram(bins, 1 - belief)
        evidence = (inside / (inside + outside))[bins].reshape(belief.shape)
        odds = evidence / (1 - evidence) * place / (1 - place)
        belief = ndimage.gaussian_filter(odds / (1 + odds), 1.5)
    found = _largest(belief > 0.5)
    if not 0.02 < found.mean() < 0.8:  # no object stands out, so the middle of the image is taken
        found = place > np.quantile(place, 0.65)
    soft = np.clip(ndimage.gaussian_filter(found * 255.0, 0.7), 0, 255).astype(np.uint8)
    return Image.fromarray(soft).resize(image.size, Image.Resampling.BILINEAR)


def _place(height: int, width: int) -> NDArray[np.float64]:
    """The prior probability (H, W) of the object: 0.48 in the centre, 0.03 in the corners."""
    y, x = np.linspace(-1, 1, height)[:, None], np.linspace(-1, 1, width)[None, :]
    return 0.03 + 0.45 * np.exp(-((x**2 + y**2) ** 1.5) * 1.2)


def _far_from_border(colours: NDArray[np.float64]) -> NDArray[np.float64]:
    """The distance (H, W) of each pixel's colour from the nearest of the border's main colours."""
    height, width = colours.shape[:2]
    edge = max(1, round(min(height, width) / 14))
    border = np.ones((height, width), bool)
    border[edge:-edge, edge:-edge] = False
    samples = colours[border]
    centres = samples[np.argsort(samples[:, 0], kind="stable")][
        np.linspace(0, len(samples) - 1, 6).round().astype(int)
    ]
    for _ in range(8):  # k-means, starting at different levels of brightness
        nearest = np.argmin(_squares(samples, centres), axis=1)
        centres = np.stack(
            [
                samples[nearest == n].mean(axis=0) if np.any(nearest == n) else centre
                for n, centre in enumerate(centres)
            ]
        )
    # How far the pixels of the border themselves are from the main colours.
    own = _squares(samples, centres).min(axis=1).mean() + 25.0
    distances = _squares(colours.reshape(-1, 3), centres).min(axis=1).reshape(height, width)
    return 1 - np.exp(-distances / (2 * own))


def _squares(rows: NDArray[np.float64], centres: NDArray[np.float64]) -> NDArray[np.float64]:
    return ((rows[:, None, :] - centres[None, :, :]) ** 2).sum(axis=2)


def _histogram(bins: NDArray[np.intp], weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """The share of each colour bin, smoothed over its neighbours and never exactly 0."""
    counts = np.bincount(bins, weights.ravel(), _LEVELS**3).reshape((_LEVELS,) * 3)
    smooth = ndimage.gaussian_filter(counts, 0.8).ravel()
    return smooth / smooth.sum() + 1e-5


def _largest(found: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """The largest piece and those of at least a quarter of its size, with their holes filled."""
    pieces, count = ndimage.label(found)
    if not count:
        return found
    sizes = np.bincount(pieces.ravel())[1:]
    kept = np.flatnonzero(sizes >= sizes.max() / 4) + 1
    return ndimage.binary_fill_holes(np.isin(pieces, kept))
