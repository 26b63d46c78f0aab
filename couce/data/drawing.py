"""Draws the objects, backgrounds and light of the demo set."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageChops, ImageDraw

PIXELS = 64
CANVAS = 2 * PIXELS  # drawn at twice the size and scaled down, for smooth edges

Colour = tuple[int, int, int]
Rng = np.random.Generator


# Objects. Each is drawn in coordinates from 0 to 1, as a body with markings and as details.


class Pen:
    """Draws in coordinates from 0 to 1."""

    def __init__(self, image: Image.Image) -> None:
        self._draw = ImageDraw.Draw(image)
        self._size = image.width

    def polygon(self, points: list[tuple[float, float]], fill: Colour | int) -> None:
        self._draw.polygon([(x * self._size, y * self._size) for x, y in points], fill=fill)

    def ellipse(self, x0: float, y0: float, x1: float, y1: float, fill: Colour | int) -> None:
        self._draw.ellipse([v * self._size for v in (x0, y0, x1, y1)], fill=fill)

    def box(self, x0: float, y0: float, x1: float, y1: float, fill: Colour | int) -> None:
        self._draw.rectangle([v * self._size for v in (x0, y0, x1, y1)], fill=fill)


DARK: Colour = (30, 30, 35)
WHITE: Colour = (245, 245, 245)


def _bird(pen: Pen, body: Colour | int, accent: Colour | int) -> None:
    pen.polygon([(0.05, 0.5), (0.3, 0.45), (0.3, 0.62)], body)  # tail
    pen.ellipse(0.2, 0.38, 0.75, 0.75, body)
    pen.ellipse(0.6, 0.22, 0.85, 0.47, body)
    pen.polygon([(0.83, 0.32), (0.98, 0.36), (0.83, 0.4)], accent)
    pen.polygon([(0.35, 0.5), (0.6, 0.48), (0.3, 0.72)], accent)  # wing
    for x in (0.45, 0.55):
        pen.box(x, 0.73, x + 0.02, 0.9, accent)


def _fish(pen: Pen, body: Colour | int, accent: Colour | int) -> None:
    pen.polygon([(0.05, 0.3), (0.3, 0.5), (0.05, 0.7)], accent)
    pen.polygon([(0.4, 0.35), (0.6, 0.15), (0.65, 0.38)], accent)
    pen.ellipse(0.2, 0.28, 0.95, 0.72, body)


def _butterfly(pen: Pen, body: Colour | int, accent: Colour | int) -> None:
    for side in (-1, 1):
        x = 0.5 + side * 0.22
        pen.ellipse(x - 0.22, 0.12, x + 0.22, 0.52, body)
        pen.ellipse(x - 0.15, 0.48, x + 0.15, 0.82, body)
    pen.ellipse(0.46, 0.2, 0.54, 0.8, accent)


def _house(pen: Pen, body: Colour | int, accent: Colour | int) -> None:
    pen.box(0.18, 0.42, 0.82, 0.9, body)
    pen.polygon([(0.08, 0.45), (0.5, 0.08), (0.92, 0.45)], accent)


def _car(pen: Pen, body: Colour | int, accent: Colour | int) -> None:
    pen.polygon([(0.25, 0.5), (0.36, 0.28), (0.68, 0.28), (0.8, 0.5)], accent)
    pen.box(0.06, 0.46, 0.95, 0.7, body)


def _boat(pen: Pen, body: Colour | int, accent: Colour | int) -> None:
    pen.polygon([(0.52, 0.08), (0.52, 0.62), (0.9, 0.62)], body)
    pen.polygon([(0.47, 0.2), (0.47, 0.62), (0.18, 0.62)], body)
    pen.polygon([(0.08, 0.66), (0.92, 0.66), (0.76, 0.88), (0.24, 0.88)], accent)


def _mushroom(pen: Pen, body: Colour | int, accent: Colour | int) -> None:
    pen.polygon([(0.4, 0.5), (0.6, 0.5), (0.66, 0.92), (0.34, 0.92)], accent)
    pen.polygon([(0.06, 0.55), (0.16, 0.28), (0.5, 0.1), (0.84, 0.28), (0.94, 0.55)], body)


def _flower(pen: Pen, body: Colour | int, accent: Colour | int) -> None:
    pen.box(0.48, 0.5, 0.52, 0.97, accent)
    for angle in np.linspace(0, 2 * np.pi, 6, endpoint=False):
        x, y = 0.5 + 0.22 * np.cos(angle), 0.4 + 0.22 * np.sin(angle)
        pen.ellipse(x - 0.16, y - 0.16, x + 0.16, y + 0.16, body)
    pen.ellipse(0.38, 0.28, 0.62, 0.52, accent)


THINGS: dict[str, Callable[[Pen, Colour | int, Colour | int], None]] = {
    "bird": _bird,
    "fish": _fish,
    "butterfly": _butterfly,
    "house": _house,
    "car": _car,
    "boat": _boat,
    "mushroom": _mushroom,
    "flower": _flower,
}


def _details(thing: str, pen: Pen) -> None:
    """Draws the details that are the same in all variants of an object."""
    if thing == "bird":
        pen.ellipse(0.72, 0.29, 0.77, 0.34, DARK)
    elif thing == "fish":
        pen.ellipse(0.8, 0.42, 0.86, 0.48, DARK)
    elif thing == "house":
        pen.box(0.44, 0.64, 0.58, 0.9, DARK)
        pen.box(0.25, 0.54, 0.38, 0.66, WHITE)
        pen.box(0.64, 0.54, 0.76, 0.66, WHITE)
    elif thing == "car":
        pen.polygon([(0.33, 0.47), (0.4, 0.32), (0.64, 0.32), (0.72, 0.47)], WHITE)
        for x in (0.26, 0.75):
            pen.ellipse(x - 0.11, 0.59, x + 0.11, 0.81, DARK)
    elif thing == "boat":
        pen.box(0.485, 0.06, 0.51, 0.68, DARK)


PALETTE: list[Colour] = [
    (200, 50, 45),
    (45, 95, 190),
    (235, 185, 50),
    (60, 150, 75),
    (150, 70, 165),
    (235, 235, 230),
    (60, 55, 60),
    (225, 120, 45),
]


def _marking(kind: int, body: Colour, accent: Colour) -> Image.Image:
    """The paint of a body: plain (0), vertical stripes (1), spots (2) or horizontal stripes (3)."""
    image = Image.new("RGB", (CANVAS, CANVAS), body)
    pen = Pen(image)
    if kind == 1:
        for x in np.arange(0.02, 1, 0.16):
            pen.box(x, 0, x + 0.07, 1, accent)
    elif kind == 2:
        for row, y in enumerate(np.arange(0.05, 1, 0.14)):
            for x in np.arange(0.05 + 0.08 * (row % 2), 1, 0.16):
                pen.ellipse(x - 0.04, y - 0.04, x + 0.04, y + 0.04, accent)
    elif kind == 3:
        for y in np.arange(0.04, 1, 0.15):
            pen.box(0, y, 1, y + 0.06, accent)
    return image


def draw_thing(thing: str, variant: int) -> Image.Image:
    """The object on a transparent canvas. Variants differ in body colour, accent and marking."""
    number = list(THINGS).index(thing)
    body = PALETTE[(variant + number) % len(PALETTE)]
    accent = PALETTE[(3 * variant + number + 2) % len(PALETTE)]
    if accent == body:
        accent = PALETTE[(3 * variant + number + 3) % len(PALETTE)]
    image = Image.new("RGB", (CANVAS, CANVAS))
    shape, painted = Image.new("L", image.size), Image.new("L", image.size)
    THINGS[thing](Pen(image), body, accent)
    THINGS[thing](Pen(shape), 255, 255)
    THINGS[thing](Pen(painted), 255, 0)  # the visible part of the body
    image.paste(_marking((variant + number // 2) % 4, body, accent), mask=painted)
    details = Image.new("RGB", image.size)
    _details(thing, Pen(details))
    _details(thing, Pen(image))
    covered = details.convert("L").point(lambda value: 255 if value else 0)
    image.putalpha(ImageChops.lighter(shape, covered))
    return image


# Backgrounds. Each function takes a random generator and fills a canvas.


def _shades(rng: Rng, base: Colour, spread: float = 12.0, grain: int = 8) -> Image.Image:
    """A canvas of one colour with soft random variations."""
    coarse = rng.normal(0, spread, (grain, grain, 1)) + rng.normal(0, 6, (1, 1, 3))
    pixels = np.clip(np.asarray(base) + coarse, 0, 255).astype(np.uint8)
    return Image.fromarray(pixels).resize((CANVAS, CANVAS), Image.Resampling.BICUBIC)


def _meadow(rng: Rng) -> Image.Image:
    image = _shades(rng, (95, 160, 70))
    pen = Pen(image)
    for _ in range(90):
        x, y, lean = rng.uniform(0, 1), rng.uniform(0, 1), rng.uniform(-0.03, 0.03)
        green = (int(rng.uniform(50, 110)), int(rng.uniform(120, 190)), 50)
        pen.polygon([(x, y), (x + 0.012, y), (x + lean, y - rng.uniform(0.06, 0.14))], green)
    return image


def _sea(rng: Rng) -> Image.Image:
    image = _shades(rng, (45, 110, 165))
    pen = Pen(image)
    for y in np.arange(rng.uniform(0, 0.08), 1, 0.085):
        shift = rng.uniform(0, 0.2)
        for x in np.arange(-0.2, 1, 0.2):
            pen.ellipse(x + shift, y, x + shift + 0.14, y + 0.02, (165, 205, 225))
    return image


def _desert(rng: Rng) -> Image.Image:
    image = _shades(rng, (225, 190, 130))
    pen = Pen(image)
    for y in np.arange(0.25, 1.2, 0.2):
        x, shade = rng.uniform(-0.2, 0.9), int(rng.uniform(-25, 5))
        dune = (215 + shade, 175 + shade, 115 + shade)
        pen.polygon(
            [(x - 0.7, y + 0.3), (x, y - rng.uniform(0.05, 0.15)), (x + 0.6, y + 0.3)], dune
        )
    return image


def _forest(rng: Rng) -> Image.Image:
    image = _shades(rng, (40, 75, 45))
    pen = Pen(image)
    for x in np.arange(rng.uniform(-0.05, 0.05), 1, 0.17):
        width, brown = rng.uniform(0.04, 0.08), int(rng.uniform(60, 100))
        pen.box(x, 0, x + width, 1, (brown, int(brown * 0.7), int(brown * 0.45)))
    return image


def _bricks(rng: Rng) -> Image.Image:
    image = _shades(rng, (190, 180, 170))
    pen = Pen(image)
    start = rng.uniform(-0.1, 0)
    for row, y in enumerate(np.arange(start, 1, 0.12)):
        for x in np.arange(start - 0.12 * (row % 2), 1, 0.25):
            red = int(rng.uniform(140, 185))
            pen.box(x, y, x + 0.23, y + 0.1, (red, int(red * 0.5), int(red * 0.4)))
    return image


def _snow(rng: Rng) -> Image.Image:
    image = _shades(rng, (215, 225, 238), spread=8)
    pen = Pen(image)
    for _ in range(50):
        x, y, r = rng.uniform(0, 1), rng.uniform(0, 1), rng.uniform(0.008, 0.02)
        pen.ellipse(x - r, y - r, x + r, y + r, (255, 255, 255))
    return image


def _night(rng: Rng) -> Image.Image:
    image = _shades(rng, (25, 28, 70), spread=6)
    pen = Pen(image)
    for _ in range(45):
        x, y, r = rng.uniform(0, 1), rng.uniform(0, 1), rng.uniform(0.004, 0.012)
        pen.ellipse(x - r, y - r, x + r, y + r, (240, 235, 200))
    return image


def _tiles(rng: Rng) -> Image.Image:
    image = _shades(rng, (225, 215, 205), spread=5)
    pen = Pen(image)
    start, side = rng.uniform(-0.3, 0), 0.15
    for row, y in enumerate(np.arange(start, 1, side)):
        for column, x in enumerate(np.arange(start, 1, side)):
            if (row + column) % 2:
                pen.box(x, y, x + side, y + side, (85, 125, 130))
    return image


BACKGROUNDS: dict[str, Callable[[Rng], Image.Image]] = {
    "meadow": _meadow,
    "sea": _sea,
    "desert": _desert,
    "forest": _forest,
    "bricks": _bricks,
    "snow": _snow,
    "night": _night,
    "tiles": _tiles,
}

# The factors by which each light multiplies red, green and blue.
LIGHTS: dict[str, tuple[float, float, float]] = {
    "noon": (1.0, 1.0, 1.0),
    "sunset": (1.2, 0.8, 0.55),
    "dusk": (0.65, 0.6, 0.85),
    "overcast": (0.75, 0.8, 0.85),
    "canopy": (0.75, 1.05, 0.65),
    "lamp": (1.15, 1.0, 0.6),
    "moon": (0.45, 0.5, 0.75),
    "dawn": (1.1, 0.8, 0.95),
}


def light_up(pixels: NDArray[np.uint8], light: str, rng: Rng) -> NDArray[np.uint8]:
    """Applies the colour of the light, and makes the image brighter on a random side."""
    tint = np.asarray(LIGHTS[light]) * rng.uniform(0.92, 1.08)
    angle, ramp = rng.uniform(0, 2 * np.pi), np.linspace(-0.15, 0.15, PIXELS)
    fall = 1 + np.cos(angle) * ramp[:, None] + np.sin(angle) * ramp[None, :]
    return np.clip(pixels * tint * fall[..., None], 0, 255).astype(np.uint8)
