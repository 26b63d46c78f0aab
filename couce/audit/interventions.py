"""Changes of an image that leave its content recognisable, and their strengths.

Each takes RGB pixels (H, W, 3), a random generator and a strength. The audit uses the strength 1,
and 0 changes nothing. Lengths are shares of the image's shorter side, so that a strength means the
same at every size.
"""

import io
from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFilter

Pixels = NDArray[np.uint8]
Rng = np.random.Generator
Group = Literal["spectrum", "light", "colour", "sharpness", "frame"]

RINGS = ("low", "middle", "high")


class Intervention(NamedTuple):
    name: str
    group: Group
    about: str
    change: Callable[[Pixels, Rng, float], Pixels]


def scale_ring(pixels: Pixels, rng: Rng, strength: float, ring: int) -> Pixels:
    """Multiplies the amplitudes of one of three rings of the spectrum by 0.5 or 1.5.

    The phases are kept. The rings are those of MSRCI: they have equal width up to the Nyquist
    frequency, and the corners belong to the outermost. The mean is kept, because changing it would
    change the brightness. All colours share the draw. The result is clipped to 0-255.
    """
    factor = 1 + _sign(rng) * 0.5 * strength
    height, width = pixels.shape[:2]
    radius = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)[None, :])
    ring_of = np.minimum((radius * 2 * len(RINGS)).astype(int), len(RINGS) - 1)
    gain = np.where(ring_of == ring, factor, 1.0)
    gain[0, 0] = 1.0
    spectrum = np.fft.rfft2(pixels.astype(np.float64), axes=(0, 1))
    return _clipped(np.fft.irfft2(spectrum * gain[..., None], s=(height, width), axes=(0, 1)))


def brightness(pixels: Pixels, rng: Rng, strength: float) -> Pixels:
    return _clipped(pixels * (1 + _sign(rng) * 0.5 * strength))


def tint(pixels: Pixels, rng: Rng, strength: float) -> Pixels:
    """Multiplies red, green and blue by 0.7 to 1.3 each, as light of another colour does."""
    return _clipped(pixels * (1 + rng.uniform(-0.3, 0.3, 3) * strength))


def saturation(pixels: Pixels, rng: Rng, strength: float) -> Pixels:
    grey = _luma(pixels)
    return _clipped(grey + (pixels - grey) * (1 + _sign(rng) * 0.5 * strength))


def hue(pixels: Pixels, rng: Rng, strength: float) -> Pixels:
    """Turns the colours by 60° in either direction around the grey axis (Rodrigues' formula)."""
    angle = _sign(rng) * np.pi / 3 * strength
    cos, sin = np.cos(angle), np.sin(angle) / np.sqrt(3)
    turn = cos * np.eye(3) + (1 - cos) / 3
    turn += sin * np.array([[0, -1, 1], [1, 0, -1], [-1, 1, 0]])
    return _clipped(pixels.astype(np.float64) @ turn.T)


def grey(pixels: Pixels, _: Rng, strength: float) -> Pixels:
    return _clipped(pixels + (_luma(pixels) - pixels) * strength)


def blur(pixels: Pixels, _: Rng, strength: float) -> Pixels:
    """A Gaussian blur with a σ of 1 % of the shorter side."""
    radius = 0.01 * min(pixels.shape[:2]) * strength
    return np.asarray(Image.fromarray(pixels).filter(ImageFilter.GaussianBlur(radius)))


def jpeg(pixels: Pixels, _: Rng, strength: float) -> Pixels:
    """JPEG compression of quality 20 at the strength 1, and no compression at 0."""
    if strength == 0:
        return pixels
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=round(95 - 75 * strength))
    return np.asarray(Image.open(file))


def crop(pixels: Pixels, rng: Rng, strength: float) -> Pixels:
    """Cuts out 0.8 of each side at a random place and enlarges it to the size of the image."""
    height, width = pixels.shape[:2]
    lost = 0.2 * strength
    left, top = rng.uniform(0, lost, 2)
    box = (left * width, top * height, (left + 1 - lost) * width, (top + 1 - lost) * height)
    if strength == 0:
        return pixels
    image = Image.fromarray(pixels)
    return np.asarray(image.resize((width, height), Image.Resampling.BILINEAR, box))


def shift(pixels: Pixels, rng: Rng, strength: float) -> Pixels:
    """Shifts by 0.15 of the shorter side in a random direction, mirroring the image at the edge."""
    angle = rng.uniform(0, 2 * np.pi)
    length = 0.15 * min(pixels.shape[:2]) * strength
    down, right = round(length * np.sin(angle)), round(length * np.cos(angle))
    room = max(abs(down), abs(right))
    padded = np.pad(pixels, ((room, room), (room, room), (0, 0)), mode="reflect")
    top, left = room - down, room - right
    return padded[top : top + pixels.shape[0], left : left + pixels.shape[1]]


def _ring(number: int) -> Callable[[Pixels, Rng, float], Pixels]:
    return lambda pixels, rng, strength: scale_ring(pixels, rng, strength, number)


INTERVENTIONS: tuple[Intervention, ...] = (
    *(
        Intervention(f"{name} frequencies", "spectrum", "amplitudes x 0.5 or 1.5", _ring(number))
        for number, name in enumerate(RINGS)
    ),
    Intervention("brightness", "light", "x 0.5 or 1.5", brightness),
    Intervention("tint", "light", "red, green, blue x 0.7 to 1.3", tint),
    Intervention("saturation", "colour", "x 0.5 or 1.5", saturation),
    Intervention("hue", "colour", "turned by 60 degrees", hue),
    Intervention("grey", "colour", "no colour at all", grey),
    Intervention("blur", "sharpness", "sigma 1 % of the shorter side", blur),
    Intervention("jpeg", "sharpness", "quality 20", jpeg),
    Intervention("crop", "frame", "0.8 of each side, anywhere", crop),
    Intervention("shift", "frame", "by 0.15 of the shorter side", shift),
)


def _sign(rng: Rng) -> float:
    return 1.0 if rng.random() < 0.5 else -1.0


def _luma(pixels: Pixels) -> NDArray[np.float64]:
    return (pixels @ np.array([0.299, 0.587, 0.114]))[..., None]


def _clipped(values: NDArray[np.floating]) -> Pixels:
    return np.clip(np.rint(values), 0, 255).astype(np.uint8)
