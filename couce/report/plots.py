"""Draws charts and sheets of images in one plain style, without global state."""

import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter
from numpy.typing import NDArray
from PIL import Image, ImageDraw

# The palette of Okabe and Ito, which colour-blind people can distinguish as well.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#999999", "#000000")
_STYLE: Any = {
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "figure.dpi": 110,
    "font.size": 9,
    "grid.alpha": 0.3,
    "legend.frameon": False,
    "text.parse_math": False,  # the name of a class may contain a $
}


def draw(
    paint: Callable[[list[Axes]], None],
    columns: int = 1,
    rows: int = 1,
    width: float = 4.2,
    height: float = 3.0,
) -> Image.Image:
    """An image of a figure. ``paint`` draws the panels and gets them row by row.

    Each panel has ``width`` x ``height`` inches.
    """
    # The figure is also saved within the style, because some settings only take effect then.
    with rc_context(_STYLE):
        figure = Figure((columns * width, rows * height), layout="constrained")
        paint(list(np.atleast_1d(figure.subplots(rows, columns)).ravel()))
        file = io.BytesIO()
        figure.savefig(file, format="png")
        return Image.open(file).convert("RGB")


def grouped(
    axes: Axes,
    names: Sequence[str],
    series: Mapping[str, Sequence[float]],
    spreads: Mapping[str, Sequence[tuple[float, float]]] | None = None,
    lines: bool = False,
) -> None:
    """Draws the values of several series at ``names``, with their spreads (lower, upper).

    The values are drawn as points. Bars would have to start at 0, so that small differences would
    be invisible. ``lines`` joins the points of a series. It is for names that are steps of one
    quantity.
    """
    places = np.arange(len(names))
    for number, (label, values) in enumerate(series.items()):
        room = 0.15 if lines else 0.6
        offset = (number - (len(series) - 1) / 2) * room / len(series)
        bars = None
        if spreads is not None:
            low, high = np.array(spreads[label], float).reshape(-1, 2).T
            bars = np.abs(np.array([np.asarray(values) - low, high - np.asarray(values)]))
        axes.errorbar(
            places + offset,
            values,
            yerr=bars,
            fmt="o-" if lines else "o",
            color=COLOURS[number % len(COLOURS)],
            markersize=5,
            capsize=3,
            linewidth=1.4,
            label=label,
        )
    crowded = sum(max(map(len, name.split("\n"))) for name in names) > 50
    axes.set_xticks(
        places, names, rotation=35 if crowded else 0, ha="right" if crowded else "center"
    )
    axes.set_xlim(-0.6, len(names) - 0.4)


def logarithmic(axis: Axis) -> None:
    """Labels powers of ten as plain numbers. matplotlib would use formulas, which are off here."""
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


_GAP, _TEXT = 6, 15
GREEN, RED = (30, 160, 70), (215, 45, 45)


class Cell:
    """An image of a sheet, with a line of text below it and an optional frame around it."""

    def __init__(
        self,
        picture: Image.Image | NDArray[np.uint8] | None,
        text: str = "",
        frame: tuple[int, int, int] | None = None,
    ) -> None:
        self.picture = Image.fromarray(picture) if isinstance(picture, np.ndarray) else picture
        self.text = text
        self.frame = frame


def sheet(rows: Sequence[Sequence[Cell]], heads: Sequence[str] = (), side: int = 96) -> Image.Image:
    """One image of many in rows and columns, ``side`` pixels each, with ``heads`` above them."""
    columns = max(map(len, rows))
    top = _TEXT + _GAP if any(heads) else _GAP
    step = (side + 2 * _GAP, side + _TEXT + 2 * _GAP)
    image = Image.new("RGB", (columns * step[0] + _GAP, top + len(rows) * step[1]), "white")
    pen = ImageDraw.Draw(image)
    for column, head in enumerate(heads):
        pen.text((column * step[0] + _GAP, _GAP // 2), fitted(pen, head, step[0]), "black")
    for row, cells in enumerate(rows):
        for column, cell in enumerate(cells):
            left, upper = column * step[0] + _GAP, top + row * step[1]
            if cell.picture is not None:
                image.paste(cell.picture.resize((side, side)), (left, upper))
            if cell.frame is not None:
                box = (left - 4, upper - 4, left + side + 3, upper + side + 3)
                pen.rectangle(box, outline=cell.frame, width=4)
            pen.text((left, upper + side + 5), fitted(pen, cell.text, side + _GAP), "black")
    return image


def fitted(pen: ImageDraw.ImageDraw, text: str, width: int) -> str:
    """The text, shortened to ``width`` pixels. Characters that the font does not have become ?."""
    text = text.encode("latin-1", "replace").decode("latin-1")
    if pen.textlength(text) <= width:
        return text
    while text and pen.textlength(text + "..") > width:
        text = text[:-1]
    return text + ".."
