"""An object before another background, and a background without its object."""

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFilter

Pixels = NDArray[np.uint8]  # RGB (H, W, 3)
Mask = NDArray[np.uint8]  # (H, W), 255 where the object is

LEAST = 0.01  # the smallest share of an image that an object covers

_COARSE = 64  # how many pixels the shorter side of the fill has about, which is smooth


def paste(pixels: Pixels, mask: Mask, background: Pixels) -> Pixels:
    """The object of ``pixels`` before ``background``. Where the mask is 255, no pixel changes."""
    image = Image.fromarray(pixels)
    return np.asarray(
        Image.composite(image, Image.fromarray(background), Image.fromarray(mask, "L"))
    )


def without_object(pixels: Pixels, mask: Mask) -> Pixels:
    """The image with the object painted over in the colours of the background around it.

    The mask is widened first, because its edge still shows the object. The fill goes from coarse
    to fine (push-pull, Gortler et al., 1996), so that it is smooth and shows no outline.
    """
    image, shape = Image.fromarray(pixels), Image.fromarray(mask, "L")
    factor = max(1, min(image.size) // _COARSE)
    # A coarse pixel is covered if the object is in it or beside it.
    covered = shape.reduce(factor).point(lambda value: min(255, 16 * value))
    wide = covered.filter(ImageFilter.MaxFilter(3))
    known = 1 - np.asarray(wide, np.float32) / np.float32(255)
    colours = np.asarray(image.reduce(factor), np.float32)
    fill = _resized(_push_pull(colours, known), image.size)
    return np.asarray(
        Image.composite(fill, image, wide.resize(image.size, Image.Resampling.BILINEAR))
    )


def _push_pull(colours: NDArray[np.float32], known: NDArray[np.float32]) -> NDArray[np.float32]:
    """``colours`` (H, W, 3) where ``known`` (H, W) is 1, elsewhere the known colours around."""
    height, width = known.shape
    weight = known[..., None]
    if max(height, width) <= 2 or known.min() >= 1:
        total = known.sum()
        mean = (colours * weight).sum(axis=(0, 1)) / total if total else 127.5
        return colours * weight + mean * (1 - weight)
    rows, columns = -(-height // 2), -(-width // 2)
    room = ((0, 2 * rows - height), (0, 2 * columns - width))
    mass = np.pad(known, room).reshape(rows, 2, columns, 2).sum(axis=(1, 3))
    sums = np.pad(colours * weight, (*room, (0, 0))).reshape(rows, 2, columns, 2, 3)
    means = sums.sum(axis=(1, 3)) / np.maximum(mass, 1e-6)[..., None]
    around = _push_pull(means, np.minimum(mass, 1))
    around = np.asarray(_resized(around, (2 * columns, 2 * rows)))[:height, :width]
    return colours * weight + around * (1 - weight)


def _resized(colours: NDArray[np.float32], size: tuple[int, int]) -> Image.Image:
    whole = Image.fromarray(np.rint(colours).astype(np.uint8))
    return whole.resize(size, Image.Resampling.BILINEAR)
