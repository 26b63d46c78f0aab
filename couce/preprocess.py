"""From an image file to what a model is fed, in plain Pillow and numpy.

The description, :class:`Preprocess`, belongs to the backbone and travels with the model.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from couce.errors import CouceError, unknown_name

# What claims more is taken for an attack; Pillow itself warns just above. Decoding that much takes
# up to 1.5 GB with what alpha needs: whoever serves strangers sets a lower limit.
MAX_PIXELS = 89_000_000

# Raster formats whose size stands in the header, before anything is decoded. Not among them: what
# runs an interpreter (EPS), and containers that decode to tell their size (ICO).
FORMATS = ("JPEG", "MPO", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF", "PPM")

# No embedding model looks at more, and a batch of it would take gigabytes.
_MAX_SIZE = 4096

# With aspect="keep", an image longer than this many times its shorter side is cut at both ends.
_LONGEST = 8

ImageSource = bytes | str | Path | Image.Image


class ImageError(CouceError):
    """The image cannot be used."""


@dataclass(frozen=True)
class Preprocess:
    """Resize, crop, channel order, scale, mean and std, in this order.

    ``aspect``: ``squash`` resizes to a square of ``resize`` pixels, as the paper does; ``keep`` makes
    the shorter side that long. Pixels 0-255 are multiplied by ``scale``/255, then normalised by
    ``mean`` and ``std``, which are in the order of ``channels``.
    """

    resize: int = 256
    crop: int = 224
    aspect: Literal["squash", "keep"] = "squash"
    channels: Literal["RGB", "BGR"] = "RGB"
    scale: float = 1.0
    mean: tuple[float, float, float] = (0.485, 0.456, 0.406)
    std: tuple[float, float, float] = (0.229, 0.224, 0.225)

    def __post_init__(self) -> None:
        if not all(type(size) is int for size in (self.resize, self.crop)):
            raise CouceError(f"sizes are whole pixels, not {self.resize} and {self.crop}")
        numbers = (self.scale, *self.mean, *self.std)
        if len(numbers) != 7 or not all(
            isinstance(each, int | float) and math.isfinite(each) for each in numbers
        ):
            raise CouceError(f"mean and std have a finite number for each channel, not {numbers}")
        if not all(each > 0 for each in (self.scale, *self.std)):
            raise CouceError("scale and std are above 0")
        if self.resize > _MAX_SIZE:
            raise CouceError(f"images are prepared at up to {_MAX_SIZE} pixels, not {self.resize}")
        if not 0 < self.crop <= self.resize:
            raise CouceError(
                f"the crop ({self.crop} pixels) must fit into the resized image ({self.resize})"
            )
        for name, known in (("aspect", ("squash", "keep")), ("channels", ("RGB", "BGR"))):
            if getattr(self, name) not in known:
                raise CouceError(f"{name} is {getattr(self, name)!r}, not one of {known}")

    def sized(self, resize: int | None = None, crop: int | None = None) -> Self:
        """The same with other sizes; what is None stays, and a resize alone keeps the proportion."""
        if resize is not None and crop is None:
            crop = round(self.crop * resize / self.resize)
        if crop is not None and resize is None:
            resize = round(self.resize * crop / self.crop)
        return replace(self, resize=resize or self.resize, crop=crop or self.crop)

    def pixels(self, image: Image.Image) -> NDArray[np.uint8]:
        """The centre crop of an RGB image as uint8 (crop, crop, 3), in RGB whatever the model wants.

        >>> Preprocess().pixels(Image.new("RGB", (500, 300), "red")).shape
        (224, 224, 3)
        """
        resized = self.resized(image)
        left = round((resized.width - self.crop) / 2)
        top = round((resized.height - self.crop) / 2)
        return np.asarray(resized.crop((left, top, left + self.crop, top + self.crop)))

    def resized(self, image: Image.Image) -> Image.Image:
        """The image before cropping: where training takes its random crops from."""
        width = height = self.resize
        if self.aspect == "keep":
            shorter = min(image.size)
            longest = _LONGEST * shorter
            if max(image.size) > longest:
                left, top = max(0, image.width - longest) // 2, max(0, image.height - longest) // 2
                image = image.crop((left, top, image.width - left, image.height - top))
            width = image.width * self.resize // shorter
            height = image.height * self.resize // shorter
        return image.resize((width, height), Image.Resampling.BILINEAR)

    def normalise(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        """RGB pixels (..., H, W, 3) as the float32 (..., 3, H, W) that the backbone was trained on."""
        ordered = pixels if self.channels == "RGB" else pixels[..., ::-1]
        std = np.asarray(self.std, dtype=np.float32)
        gain = np.float32(self.scale / 255) / std
        offset = np.asarray(self.mean, dtype=np.float32) / std
        scaled = ordered.astype(np.float32) * gain - offset
        return np.ascontiguousarray(np.moveaxis(scaled, -1, -3))

    def __call__(self, sources: Sequence[ImageSource]) -> NDArray[np.float32]:
        """Images as one batch (N, 3, crop, crop)."""
        return self.normalise(np.stack([self.pixels(open_image(source)) for source in sources]))

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """The inverse of :meth:`to_dict`, also after a trip through JSON."""
        try:
            plain: Any = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
            return cls(**plain)
        except TypeError as error:
            raise CouceError(f"this is no description of preprocessing: {error}") from None

    @classmethod
    def parse(cls, assignments: Sequence[str]) -> Self:
        """From texts such as ``crop=224`` and ``mean=0.5,0.5,0.5``.

        >>> Preprocess.parse(["resize=300", "crop=256", "channels=BGR"]).channels
        'BGR'
        """
        values: dict[str, Any] = {}
        for assignment in assignments:
            key, _, text = assignment.partition("=")
            known: dict[str, Any] = {field.name: field.default for field in fields(cls)}
            if key not in known:
                raise unknown_name("part of preprocessing", key, known)
            try:
                if isinstance(known[key], tuple):
                    values[key] = tuple(float(part) for part in text.split(","))
                else:
                    values[key] = type(known[key])(text)
            except ValueError:
                raise CouceError(f"--preprocess {assignment} is not a value for {key}") from None
        return cls(**values)


IMAGENET = Preprocess()


def open_image(
    source: ImageSource, max_pixels: int = MAX_PIXELS, shortest: int | None = None
) -> Image.Image:
    """The image, fully decoded, upright (EXIF orientation applied) and in RGB.

    ``shortest``: how many pixels the shorter side will be resized to. A JPEG is then decoded at the
    scale (1/2, 1/4, 1/8) that still leaves twice that: quicker and, once resized, all but the same.

    Transparent parts become white, 16-bit grey is scaled to 8 bits, of an animation the first frame
    is taken. Anything that cannot be decoded whole is an :class:`ImageError`.
    """
    name = "the image" if isinstance(source, bytes | Image.Image) else str(source)
    try:
        if isinstance(source, Image.Image):
            return _as_rgb(_checked(source, name, max_pixels))
        file = BytesIO(source) if isinstance(source, bytes) else source
        with Image.open(file, formats=_formats()) as image:
            _checked(image, name, max_pixels)
            if shortest is not None:
                image.draft("RGB", (2 * shortest, 2 * shortest))
            return _as_rgb(image)
    except ImageError:
        raise
    except FileNotFoundError:
        raise ImageError(f"there is no image at {name}") from None
    except Image.DecompressionBombError:
        raise _too_large(name, max_pixels) from None
    except UnidentifiedImageError:
        raise ImageError(f"{name} is not an image in a known format") from None
    # Pillow's decoders raise whatever their parsers run into on broken input.
    except Exception as error:
        raise ImageError(f"{name} is damaged and cannot be decoded: {error}") from error


@cache
def _formats() -> tuple[str, ...]:
    """The formats of ours that this Pillow was built with."""
    Image.init()
    return tuple(name for name in FORMATS if name in Image.OPEN)


def _checked(image: Image.Image, name: str, max_pixels: int) -> Image.Image:
    """Refuses a bomb by the size in its header, before any of it is decoded."""
    if image.width * image.height > max_pixels:
        raise _too_large(name, max_pixels)
    return image


def _too_large(name: str, max_pixels: int) -> ImageError:
    return ImageError(f"{name} has more than the {max_pixels} pixels allowed; scale it down")


def _as_rgb(image: Image.Image) -> Image.Image:
    upright = ImageOps.exif_transpose(image)
    if upright.mode.startswith("I"):  # 16-bit grey, or 32-bit holding 16-bit values
        grey = np.clip(np.asarray(upright), 0, 65535).astype(np.uint16)
        upright = Image.fromarray((grey >> 8).astype(np.uint8))
    elif upright.mode == "F":
        raise ImageError("an image of floating-point pixels has no known range; save it as 8-bit")
    if upright.has_transparency_data:
        layered = upright.convert("RGBA")
        upright = Image.new("RGBA", layered.size, "white")
        upright.alpha_composite(layered)
    return upright.convert("RGB")
