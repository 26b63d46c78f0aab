"""A hook of mkdocs that makes parts of the documentation from the code.

It replaces markers in the pages, such as ``<!-- commands -->``, by generated text.
"""

import json
import re
from collections.abc import Callable
from html import unescape
from typing import Any

import typer
from typer.testing import CliRunner

# An equation, as pymdownx.arithmatex marks it.
_EQUATION = re.compile(
    r'<(?P<tag>span|div) class="arithmatex">\\(?P<open>[(\[])(?P<latex>.*?)\\[)\]]</(?P=tag)>',
    re.DOTALL,
)


def on_page_markdown(markdown: str, **_: Any) -> str:
    for marker, make in MAKERS.items():
        if f"<!-- {marker} -->" in markdown:
            markdown = markdown.replace(f"<!-- {marker} -->", make())
    return markdown


def on_page_content(html: str, **_: Any) -> str:
    """Converts equations to MathML, which browsers show without a script."""
    from latex2mathml.converter import convert

    def mathml(found: re.Match[str]) -> str:
        display = "block" if found["open"] == "[" else "inline"
        return convert(unescape(found["latex"]).strip(), display=display)

    return _EQUATION.sub(mathml, html)


def commands() -> str:
    """The --help text of every command."""
    from couce.cli import app

    parts = []
    for words in _names(typer.main.get_command(app)):
        shown = CliRunner().invoke(
            app,
            [*words, "--help"],
            prog_name="couce",
            env={"COLUMNS": "90"},
            catch_exceptions=False,
        )
        text = shown.output.replace("Usage: root ", "Usage: couce ").strip()
        parts.append(f"## couce {' '.join(words)}\n\n```text\n{text}\n```\n")
    return "\n".join(parts)


def _names(group: Any, before: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """The words of each command, such as ``("index", "build")``."""
    found: list[tuple[str, ...]] = []
    for name, command in group.commands.items():
        words = (*before, name)
        found += _names(command, words) if hasattr(command, "commands") else [words]
    return found


def server_settings() -> str:
    """A Markdown table with a row for each setting of the server."""
    from couce.server.settings import ServerSettings, variable

    rows = ["| option | variable | key | default | meaning |", "| --- | --- | --- | --- | --- |"]
    for name, field in ServerSettings.model_fields.items():
        default = "" if field.default in (None, ()) else f"`{_plain(field.default)}`"
        flag = f"--{name.replace('_', '-')}"
        rows.append(
            f"| `{flag}` | `{variable(name)}` | `{name}` | {default} | {field.description} |"
        )
    return "\n".join(rows)


def _plain(value: Any) -> str:
    return json.dumps(value) if isinstance(value, bool) else str(value)


MAKERS: dict[str, Callable[[], str]] = {"commands": commands, "settings: server": server_settings}
