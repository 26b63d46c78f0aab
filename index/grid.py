"""Draws the result of a search: the query and its hits."""

from collections.abc import Sequence
from pathlib import Path

from PIL import Image, ImageDraw, ImageOps

from couce.index.base import Hit
from couce.preprocess import ImageError, ImageSource, open_image

_SIDE, _GAP, _TEXT, _COLUMNS = 160, 8, 30, 6


def draw_grid(query: ImageSource, hits: Sequence[Hit]) -> Image.Image:
    """One image with the query, in a red frame, and after it the hits with scores and labels."""
    cells = [("query", "", query)]
    for hit in hits:
        path = Path(hit.item.paths[0]) if hit.item.paths else Path(hit.id)
        cells.append((f"{hit.score:.3f}", hit.item.label or path.name, path))
    columns = min(_COLUMNS, len(cells))
    rows = -(-len(cells) // columns)
    sheet = Image.new(
        "RGB",
        (columns * (_SIDE + _GAP) + _GAP, rows * (_SIDE + _TEXT + _GAP) + _GAP),
        "white",
    )
    pen = ImageDraw.Draw(sheet)
    for place, (score, label, source) in enumerate(cells):
        left = _GAP + place % columns * (_SIDE + _GAP)
        top = _GAP + place // columns * (_SIDE + _TEXT + _GAP)
        sheet.paste(_tile(source), (left, top))
        if place == 0:
            pen.rectangle(
                (left - 3, top - 3, left + _SIDE + 2, top + _SIDE + 2), outline="red", width=3
            )
        # The built-in font has only the letters of Latin-1.
        text = f"{score}\n{label[:26]}".encode("latin-1", "replace").decode("latin-1")
        pen.multiline_text((left, top + _SIDE + 2), text, "black", spacing=1)
    return sheet


def _tile(source: ImageSource) -> Image.Image:
    try:
        return ImageOps.pad(open_image(source, shortest=_SIDE), (_SIDE, _SIDE), color="lightgrey")
    except ImageError:  # the file may have moved since it was indexed
        return Image.new("RGB", (_SIDE, _SIDE), "lightgrey")
