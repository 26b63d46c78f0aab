"""Turns image files into the input of a model, with Pillow and numpy alone.

:class:`Preprocess` describes how. Each backbone has one, and it is stored with each model.
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

# An image with more pixels is taken for an attack. Pillow itself warns just above this number.
# Decoding so many pixels takes up to 1.5 GB (with transparency), so a public server should set a
# lower limit.
MAX_PIXELS = 89_000_000

# Raster formats with the size in the header, so that it is known before anything is decoded. EPS
# is missing because it runs an interpreter, ICO because its size is only known after decoding.
FORMATS = ("JPEG", "MPO", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF", "PPM")

# No embedding model needs more pixels a side, and a batch of such images would take gigabytes.
_MAX_SIZE = 4096

# With aspect="keep", the longer side is cut at both ends to this many times the shorter side.
_LONGEST = 8

ImageSource = bytes | str | Path | Image.Image


class ImageError(CouceError):
    """The image cannot be used."""


@dataclass(frozen=True)
class Preprocess:
    """How images are prepared: resize, crop, channel order, scale, mean and std, in this order.

    With ``aspect="squash"``, images are resized to a square of ``resize`` pixels, as in the paper.
    With ``aspect="keep"``, the shorter side gets ``resize`` pixels. Pixels 0-255 are multiplied by
    ``scale``/255 and then normalised by ``mean`` and ``std``, in the order of ``channels``.
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
            raise CouceError(
                "resize and crop must be whole numbers of pixels, not"
                f" {self.resize} and {self.crop}"
            )
        numbers = (self.scale, *self.mean, *self.std)
        if len(numbers) != 7 or not all(
            isinstance(each, int | float) and math.isfinite(each) for each in numbers
        ):
            raise CouceError(
                "scale must be a finite number, and mean and std must have one for each of the"
                f" three channels, not {numbers}"
            )
        if not all(each > 0 for each in (self.scale, *self.std)):
            raise CouceError("scale and std must be above 0")
        if self.resize > _MAX_SIZE:
            raise CouceError(f"resize must be at most {_MAX_SIZE} pixels, not {self.resize}")
        if not 0 < self.crop <= self.resize:
            raise CouceError(
                f"the crop ({self.crop} pixels) must fit into the resized image ({self.resize})"
            )
        for name, known in (("aspect", ("squash", "keep")), ("channels", ("RGB", "BGR"))):
            if getattr(self, name) not in known:
                raise CouceError(
                    f"{name} must be {known[0]} or {known[1]}, not {getattr(self, name)!r}"
                )

    def sized(self, resize: int | None = None, crop: int | None = None) -> Self:
        """The same description with other sizes.

        If one of the two is None, it changes in proportion to the other. If both are, both stay.
        """
        if resize is not None and crop is None:
            crop = round(self.crop * resize / self.resize)
        if crop is not None and resize is None:
            resize = round(self.resize * crop / self.crop)
        return replace(self, resize=resize or self.resize, crop=crop or self.crop)

    def pixels(self, image: Image.Image) -> NDArray[np.uint8]:
        """The centre crop of an RGB image as uint8 (crop, crop, 3), always with the channels RGB.

        >>> Preprocess().pixels(Image.new("RGB", (500, 300), "red")).shape
        (224, 224, 3)
        """
        resized = self.resized(image)
        left = round((resized.width - self.crop) / 2)
        top = round((resized.height - self.crop) / 2)
        return np.asarray(resized.crop((left, top, left + self.crop, top + self.crop)))

    def resized(self, image: Image.Image) -> Image.Image:
        """The resized image before cropping. Training takes its random crops from it."""
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
        """The float32 input of the backbone (..., 3, H, W), from RGB pixels (..., H, W, 3)."""
        ordered = pixels if self.channels == "RGB" else pixels[..., ::-1]
        std = np.asarray(self.std, dtype=np.float32)
        gain = np.float32(self.scale / 255) / std
        offset = np.asarray(self.mean, dtype=np.float32) / std
        scaled = ordered.astype(np.float32) * gain - offset
        return np.ascontiguousarray(np.moveaxis(scaled, -1, -3))

    def __call__(self, sources: Sequence[ImageSource]) -> NDArray[np.float32]:
        """One batch (N, 3, crop, crop) of images."""
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
            raise CouceError(f"this is not a description of preprocessing: {error}") from None

    @classmethod
    def parse(cls, assignments: Sequence[str]) -> Self:
        """The description from texts such as ``crop=224`` and ``mean=0.5,0.5,0.5``.

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
                raise CouceError(
                    f"the value of --preprocess {assignment} is not one that {key} can have"
                ) from None
        return cls(**values)


IMAGENET = Preprocess()


def open_image(
    source: ImageSource, max_pixels: int = MAX_PIXELS, shortest: int | None = None
) -> Image.Image:
    """The image, completely decoded, upright (EXIF orientation applied) and in RGB.

    ``shortest`` is the number of pixels that the shorter side will be resized to. A JPEG is then
    decoded at the smallest scale (1/2, 1/4 or 1/8) that still leaves twice as many. This is faster,
    and the resized image is almost the same.

    Transparent parts become white. 16-bit grey is scaled to 8 bits. An animation gives its first
    frame. An image that cannot be decoded completely is an :class:`ImageError`.
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
    # The decoders of Pillow can raise any exception on a damaged file.
    except Exception as error:
        raise ImageError(f"{name} is damaged and cannot be decoded: {error}") from error


@cache
def _formats() -> tuple[str, ...]:
    """Those of FORMATS that the installed Pillow was built with."""
    Image.init()
    return tuple(name for name in FORMATS if name in Image.OPEN)


def _checked(image: Image.Image, name: str, max_pixels: int) -> Image.Image:
    """Refuses an image that is too large by the size in its header, before it is decoded."""
    if image.width * image.height > max_pixels:
        raise _too_large(name, max_pixels)
    return image


def _too_large(name: str, max_pixels: int) -> ImageError:
    return ImageError(f"{name} has more than the {max_pixels} pixels allowed; make it smaller")


def _as_rgb(image: Image.Image) -> Image.Image:
    upright = ImageOps.exif_transpose(image)
    if upright.mode.startswith("I"):  # 16-bit grey, or 32-bit holding 16-bit values
        grey = np.clip(np.asarray(upright), 0, 65535).astype(np.uint16)
        upright = Image.fromarray((grey >> 8).astype(np.uint8))
    elif upright.mode == "F":
        raise ImageError(
            "the image has floating-point pixels, whose range is unknown; save it with 8 bits"
        )
    if upright.has_transparency_data:
        layered = upright.convert("RGBA")
        upright = Image.new("RGBA", layered.size, "white")
        upright.alpha_composite(layered)
    return upright.convert("RGB")
