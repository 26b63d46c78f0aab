"""The result of an analysis: images, a JSON file, and a section of a self-contained HTML page."""

import base64
import html
import json
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import rich.table
from PIL import Image

from couce.config import Settings
from couce.errors import CouceError
from couce.files import replace_file

FORMAT = "couce section 1"


class Table(Settings):
    """A table of texts. The first column has the names of the rows, the others have numbers."""

    title: str = ""
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def to_rich(self) -> rich.table.Table:
        table = rich.table.Table(title=self.title or None)
        for place, column in enumerate(self.columns):
            table.add_column(column, justify="right" if place else "left", overflow="fold")
        for row in self.rows:
            table.add_row(*row)
        return table


class Picture(Settings):
    file: str  # beside the section's own file
    caption: str = ""


class _Stored(Settings):
    """The content of the JSON file of a section."""

    format: str
    title: str
    about: str
    tables: tuple[Table, ...]
    pictures: tuple[Picture, ...]
    values: Any


@dataclass(frozen=True)
class Section:
    """The result of one analysis. ``values`` has all numbers, for other programs."""

    name: str  # the start of its file names
    title: str
    about: str  # an explanation for the reader
    tables: Sequence[Table] = ()
    pictures: Sequence[tuple[Image.Image, str]] = ()  # each with its caption
    values: dict[str, Any] = field(default_factory=dict)

    def write(self, folder: Path) -> list[Path]:
        """Writes ``NAME.json``, the images and a new ``report.html``. Returns the paths of all."""
        folder.mkdir(parents=True, exist_ok=True)
        written, listed = [], []
        for number, (picture, caption) in enumerate(self.pictures, 1):
            path = folder / (f"{self.name}.png" if number == 1 else f"{self.name}-{number}.png")
            replace_file(path, partial(picture.save, format="PNG", optimize=True))
            written.append(path)
            listed.append(Picture(file=path.name, caption=caption))
        stored = _Stored(
            format=FORMAT,
            title=self.title,
            about=self.about,
            tables=tuple(self.tables),
            pictures=tuple(listed),
            values=plain(self.values),
        )
        text = json.dumps(stored.model_dump(), indent=2, allow_nan=False, ensure_ascii=False) + "\n"
        path = folder / f"{self.name}.json"
        replace_file(path, lambda part: part.write_text(text, encoding="utf-8"))
        return [*written, path, write_report([folder], folder / "report.html")]


def plain(value: Any) -> Any:
    """The value in the types of JSON. Arrays become lists, and numbers that are not finite null."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, dict):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if isinstance(value, bool | int | str | None) else str(value)


def write_report(folders: Iterable[Path], target: Path) -> Path:
    """Writes one HTML page with all sections in ``folders``. The page refers to no other file."""
    parts: list[str] = []
    names: list[tuple[str, str]] = []
    for folder in folders:
        if not folder.is_dir():
            raise CouceError(
                f"there is no folder {folder}; name folders with results of `couce analyze`"
            )
        for path in sorted(folder.glob("*.json")):
            if (stored := _read(path)) is not None:
                names.append((f"s{len(parts)}", stored.title))
                parts.append(_render(stored, folder, names[-1][0]))
    if not parts:
        listed = ", ".join(map(str, folders))
        raise CouceError(
            f"there are no results of analyses in {listed}; run one of `couce analyze --help` first"
        )
    links = "".join(f'<li><a href="#{key}">{html.escape(title)}</a></li>' for key, title in names)
    before, between, after = re.split("LINKS|PARTS", _PAGE)
    page = "".join([before, links, between, *parts, after])
    target.parent.mkdir(parents=True, exist_ok=True)
    replace_file(target, lambda part: part.write_text(page, encoding="utf-8"))
    return target


def _read(path: Path) -> _Stored | None:
    """The section in a file; None if it is another JSON file."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        raise CouceError(f"{path} is not JSON; remove it, or run its analysis again") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        return None
    try:
        return _Stored.parse(content)
    except CouceError as error:
        raise CouceError(
            f"{path} is a damaged section ({error}); remove it, or run its analysis again"
        ) from None


def _render(stored: _Stored, folder: Path, key: str) -> str:
    parts = [f'<section id="{key}"><h2>{html.escape(stored.title)}</h2>']
    parts += [f"<p>{html.escape(text)}</p>" for text in stored.about.split("\n\n")]
    for table in stored.tables:
        title = f"<caption>{html.escape(table.title)}</caption>" if table.title else ""
        head = "".join(f"<th>{html.escape(column)}</th>" for column in table.columns)
        rows = "".join(
            "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>\n"
            for row in table.rows
        )
        parts.append(f"<div><table>{title}<tr>{head}</tr>\n{rows}</table></div>")
    for picture in stored.pictures:
        path = folder / picture.file
        if Path(picture.file).name != picture.file or not path.is_file():
            raise CouceError(
                f"the image {picture.file!r} is not in {folder}; run its analysis again"
            )
        data = base64.b64encode(path.read_bytes()).decode()
        caption = html.escape(picture.caption)
        parts.append(
            f'<figure><img src="data:image/png;base64,{data}" alt="{caption}">'
            f"<figcaption>{caption}</figcaption></figure>"
        )
    return "\n".join([*parts, "</section>"])


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1"><title>CouCE: analyses</title>
<style>
:root { color-scheme: light dark; --line: #8884; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 64rem; margin: 2rem auto; padding: 0 1rem; }
section { border-top: 1px solid var(--line); margin-top: 2.5rem; }
div { overflow-x: auto; } p { max-width: 48rem; }
table { border-collapse: collapse; margin: 1rem 0; font-variant-numeric: tabular-nums; }
caption { text-align: left; font-weight: 600; padding: .3rem 0; }
td, th { padding: .3rem .8rem; text-align: right; border-bottom: 1px solid var(--line); }
td:first-child, th:first-child { text-align: left; padding-left: 0; }
figure { margin: 1.5rem 0; } img { max-width: 100%; background: #fff; border-radius: 6px; }
figcaption { font-size: .9rem; opacity: .8; max-width: 48rem; }
</style></head><body>
<h1>Analyses</h1>
<ul>LINKS</ul>
PARTS
</body></html>
"""
