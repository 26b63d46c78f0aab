"""Salient-object networks, which make good masks of photographs, and the folder of their masks."""

import hashlib
import logging
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from couce.embedder import open_session, read_model
from couce.errors import CouceError
from couce.files import replace_file
from couce.preprocess import IMAGENET, Preprocess, open_image

log = logging.getLogger(__name__)

# Networks whose mean and std are not those of ImageNet, by a part of the name of their file.
_NORMALISED = {"isnet": Preprocess(mean=(0.5, 0.5, 0.5), std=(1.0, 1.0, 1.0))}
# The network of rembg that is used. Its licence allows any use; that of rembg's default does not.
_REMBG = "isnet-general-use"


class MaskNetwork(NamedTuple):
    name: str  # other networks have other names
    mask: Callable[[Image.Image], Image.Image]  # to mode L, of any size


def open_mask_model(path: Path) -> MaskNetwork:
    """A network from an ONNX file, such as those of U²-Net, ISNet and BiRefNet.

    It has one input, an image (1, 3, S, S) with ImageNet's mean and std (ISNet: 0.5 and 1). The
    first output is the mask, as probabilities or as logits.
    """
    content = read_model(path)
    _, session = open_session(content, path, "auto", 1)
    inputs = session.get_inputs()
    shape = inputs[0].shape if inputs else []
    if (
        len(inputs) != 1
        or inputs[0].type != "tensor(float)"
        or len(shape) != 4
        or (isinstance(shape[0], int) and shape[0] != 1)
        or shape[1] != 3
        or shape[2] == 0
        or (isinstance(shape[2], int) and shape[2] != shape[3])
    ):
        raise CouceError(
            f"{path} is not a salient-object network: it must take one image (1, 3, S, S) in"
            f" float32, not {[(each.type, each.shape) for each in inputs]}"
        )
    size = shape[2] if isinstance(shape[2], int) else 1024
    known = (each for part, each in _NORMALISED.items() if part in path.name.lower())
    preprocess = next(known, IMAGENET).sized(size, size)

    def mask(image: Image.Image) -> Image.Image:
        pixels = preprocess.normalise(preprocess.pixels(image))[None]
        try:
            found = np.asarray(session.run(None, {inputs[0].name: pixels})[0], np.float32)
        except Exception as error:  # the exceptions of onnxruntime have no base class of their own
            raise CouceError(f"{path} could not make a mask: {error}") from None
        values: NDArray[np.floating] = np.squeeze(found)
        if values.ndim != 2 or not np.isfinite(values).all():
            raise CouceError(
                f"{path} is not a salient-object network: its output must be one mask of finite"
                f" numbers, not {found.shape}"
            )
        if values.min() < -0.01 or values.max() > 1.01:
            values = 1 / (1 + np.exp(-values))
        return Image.fromarray(np.rint(values.clip(0, 1) * 255).astype(np.uint8))

    return MaskNetwork(f"{path.stem}-{hashlib.sha256(content).hexdigest()[:8]}", mask)


def open_rembg() -> MaskNetwork:
    """The network of the package rembg, which downloads it once."""
    try:
        import rembg
    except ImportError:
        raise CouceError(
            "--masks rembg needs the package rembg; install it with: pip install 'couce[masks]'"
        ) from None
    try:
        session: Any = rembg.new_session(_REMBG)
    except Exception as error:  # of the download or of onnxruntime
        raise CouceError(
            f"rembg could not load its network {_REMBG} ({error}); check the connection, or name a"
            " network that you have with --mask-model"
        ) from None
    return MaskNetwork(f"rembg-{_REMBG}", lambda image: session.predict(image)[0])


def kept_masks(network: MaskNetwork, root: Path) -> Callable[[Path, Image.Image], Image.Image]:
    """The masks of the images below ``root``, made once and kept in a folder beside it.

    What cannot be written there is made whenever it is needed.
    """
    root = root.resolve()
    folder = root.parent / f"{root.stem}-masks-{network.name}"
    log.info("Masks are kept in %s", folder)

    def read(path: Path, image: Image.Image) -> Image.Image:
        # By the content, so that another image of this name, or of another size, has another mask.
        content = hashlib.sha256(image.tobytes()).hexdigest()[:12]
        target = folder / path.parent.name / f"{path.stem}-{image.width}-{content}.png"
        if target.is_file():
            return open_image(target).convert("L")
        mask = network.mask(image).resize(image.size, Image.Resampling.BILINEAR)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            replace_file(target, partial(mask.save, format="PNG"))
        except OSError as error:
            _warn(f"Masks cannot be kept in {folder} ({error.strerror}); they are made each time")
        return mask

    return read


@cache
def _warn(message: str) -> None:
    log.warning(message)
