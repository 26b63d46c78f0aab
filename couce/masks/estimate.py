"""An estimate of where the one object of an image is, from its colours. It needs no download.

Each pixel starts with a belief that it belongs to the object, its *prior*. Without other evidence,
the prior is high near the centre and for colours that are far from those of the border. Then, in a
few rounds, the colours of object and background are counted, and each pixel is judged again by its
colour, its prior and its neighbours. GrabCut (Rother et al., 2004) works in the same way, with
mixture models instead of histograms and graph cuts instead of a blur.

The estimate is rough. It finds one compact object.
"""

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy import ndimage

_SIDE = 96  # pixels of the longer side at which masks are estimated
_LEVELS = 12  # how many levels each colour has in the histograms
_ROUNDS = 3
_TRUST = 2.0  # how much the colours count beside the prior
_BLUR = 1.5


def estimate_mask(image: Image.Image, prior: NDArray[np.float64] | None = None) -> Image.Image:
    """An estimate of where the one object of ``image`` is.

    ``prior`` is a map (h, w) of any size: how probable the object is in each place. Without one,
    objects are expected in the middle, and in other colours than those of the border.
    """
    scale = _SIDE / max(image.size)
    size = (max(8, round(image.width * scale)), max(8, round(image.height * scale)))
    colours = np.asarray(image.resize(size, Image.Resampling.BOX).convert("YCbCr"), np.float64)
    if prior is None:
        expected = _place(*colours.shape[:2])
        belief = _far_from_border(colours) * expected
        belief /= max(float(np.quantile(belief, 0.95)), 1e-9)
    else:
        small = Image.fromarray(prior.astype(np.float32)).resize(size, Image.Resampling.BICUBIC)
        expected = belief = np.asarray(small, np.float64)
    belief, expected = np.clip(belief, 0.02, 0.98), np.clip(expected, 0.02, 0.98)
    bins = np.ravel_multi_index(
        tuple((colours * (_LEVELS / 256)).astype(int).reshape(-1, 3).T), (_LEVELS,) * 3
    )
    for _ in range(_ROUNDS):
        inside, outside = _histogram(bins, belief), _histogram(bins, 1 - belief)
        odds = ((inside / outside)[bins].reshape(belief.shape)) ** _TRUST
        odds *= expected / (1 - expected)
        belief = ndimage.gaussian_filter(odds / (1 + odds), _BLUR)
    found = _largest(belief > 0.5)
    if not 0.02 < found.mean() < 0.8:  # no object stands out, so the most probable part is taken
        found = expected > np.quantile(expected, 0.65)
    soft = np.clip(ndimage.gaussian_filter(found * 255.0, 0.7), 0, 255).astype(np.uint8)
    return Image.fromarray(soft).resize(image.size, Image.Resampling.BILINEAR)


def _place(height: int, width: int) -> NDArray[np.float64]:
    """The prior probability (H, W) of the object: 0.48 in the centre, 0.03 in the corners."""
    y, x = np.linspace(-1, 1, height)[:, None], np.linspace(-1, 1, width)[None, :]
    return 0.03 + 0.45 * np.exp(-((x**2 + y**2) ** 1.5) * 1.2)


def log_odds_of_place(height: int, width: int) -> NDArray[np.float64]:
    """The log-odds (H, W) of the object by its place alone, with a mean of zero."""
    place = _place(height, width)
    odds = np.log(place / (1 - place))
    return odds - odds.mean()


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
