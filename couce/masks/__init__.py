"""Masks of the object in an image, from the best source that there is.

They are drawn with the images (demo set), annotated (a folder of masks), made by a salient-object
network, or estimated from the colours of the image.
"""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from couce.data.base import DataSet
from couce.data.demo import Example, example_of, object_mask, read_plan
from couce.errors import CouceError
from couce.masks.estimate import estimate_mask
from couce.masks.networks import kept_masks, open_mask_model, open_rembg
from couce.preprocess import open_image


class Masks(NamedTuple):
    """``of(path, image)`` is the mask of an image, of its size and in mode L: 255 is the object."""

    kind: str  # for people
    of: Callable[[Path, Image.Image], Image.Image]
    source: str = ""  # for comparison: other masks have another source


def open_masks(
    data: DataSet, masks: str | Path | None = None, model: str | Path | None = None
) -> Masks:
    """The masks that the user names, those of the data set, or estimates.

    Args:
        data: the data set of the images.
        masks: ``rembg``, which is the network of that package, or a folder that has
            ``CLASS/NAME.png`` for the image ``CLASS/NAME.jpg``, white where the object is.
        model: a salient-object network as an ONNX file, instead of ``masks``.

    Masks that a network makes are kept in a folder beside the data set.
    """
    if masks is not None and model is not None:
        raise CouceError("give either --masks or --mask-model, not both")
    if model is not None:
        network = open_mask_model(Path(model))
        return Masks(f"made by {Path(model).name}", kept_masks(network, data.root), network.name)
    if masks == "rembg":
        network = open_rembg()
        return Masks("made by rembg", kept_masks(network, data.root), network.name)
    if masks is not None:
        folder = Path(masks).resolve()
        return Masks(f"annotated, in {folder.name}/", masks_in(Path(masks)), str(folder))
    plan = demo_plan(data)
    if plan is not None:
        return Masks(
            "drawn with the images",
            lambda path, image: object_mask(example_of(path, plan)).resize(image.size),
        )
    for base in (data.root, data.root / "CUB_200_2011"):
        if (base / "segmentations").is_dir():
            return Masks("annotated, in segmentations/", masks_in(base / "segmentations"))
    return Masks(
        "estimated roughly, from colours and place (better: --masks rembg or --mask-model)",
        lambda _, image: estimate_mask(image),
    )


def demo_plan(data: DataSet) -> list[Example] | None:
    """What the images of a demo set show; None if ``data`` is not a demo set."""
    try:
        return read_plan(data.root) if data.root.is_dir() else None
    except CouceError:
        return None


def masks_in(folder: Path) -> Callable[[Path, Image.Image], Image.Image]:
    """Reads the masks of a folder, ``CLASS/NAME.png``."""
    if not folder.is_dir():
        raise CouceError(f"there is no folder of masks at {folder}; check the path")

    def read(path: Path, image: Image.Image) -> Image.Image:
        found = folder / path.parent.name / f"{path.stem}.png"
        if not found.is_file():
            raise CouceError(f"the image {path} has no mask; add {found}")
        mask = _read(found)
        brightest = int(np.asarray(mask).max())
        # The mask may have class numbers, which would all count as background.
        if 0 < brightest < 128:
            raise CouceError(
                f"the brightest pixel of the mask {found} is {brightest}; save masks with 255 for"
                " the object and 0 for the background"
            )
        return mask.resize(image.size)

    return read


def _read(path: Path) -> Image.Image:
    """A mask in mode L. Of a cut-out, the transparency is the mask."""
    opaque = open_image(path)  # refuses what is no image, or too large
    with Image.open(path) as image:
        if image.has_transparency_data:
            return image.convert("RGBA").getchannel("A")
    return opaque.convert("L")
