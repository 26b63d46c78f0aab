"""Each setting is defined once: its option, variable, key of the file and row of the docs."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from site_pages import server_settings

from couce.errors import CouceError
from couce.server.settings import ServerSettings, read_settings, variable

NAMES = list(ServerSettings.model_fields)
# For each setting a value that is not its default: as it is typed, and as it is read.
VALUES: dict[str, tuple[str, object]] = {
    "model": ("m.onnx", Path("m.onnx")),
    "index": ("i", "i"),
    "host": ("0.0.0.0", "0.0.0.0"),  # noqa: S104
    "port": ("0", 0),
    "workers": ("2", 2),
    "state": ("s", Path("s")),
    "keys": ("off", "off"),
    "origin": ("https://a.example", ("https://a.example",)),
    "read_only": ("true", True),
    "new_index": ("true", True),
    "preprocess": ("crop=224", ("crop=224",)),
    "provider": ("cpu", "cpu"),
    "threads": ("3", 3),
    "batch": ("8", 8),
    "batch_wait": ("0", 0.0),
    "queue": ("9", 9),
    "max_bytes": ("4096", 4096),
    "max_upload_bytes": ("4096", 4096),
    "max_held_bytes": ("4096", 4096),
    "max_pixels": ("1000", 1000),
    "max_images": ("2", 2),
    "decode_seconds": ("0.5", 0.5),
    "read_seconds": ("0.5", 0.5),
}


def help_text() -> str:
    command = [sys.executable, "-m", "couce", "serve", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return " ".join(done.stdout.split())


def test_every_setting_has_an_option_and_a_row_in_the_docs() -> None:
    shown = help_text()
    rows = server_settings().splitlines()[2:]
    assert len(rows) == len(NAMES)
    for (name, field), row in zip(ServerSettings.model_fields.items(), rows, strict=True):
        assert field.description
        assert f"--{name.replace('_', '-')} " in shown
        assert " ".join(field.description.split()) in shown
        cells = [cell.strip("` ") for cell in row.strip("|").split("|")]
        assert cells[:3] == [f"--{name.replace('_', '-')}", variable(name), name]
        assert cells[4] == field.description
        if field.default not in (None, (), False):
            assert f"[default: {field.default}]" in shown
            assert cells[3] == str(field.default)


@pytest.mark.parametrize("name", NAMES)
def test_option_then_variable_then_file_then_default(name: str, tmp_path: Path) -> None:
    typed, value = VALUES[name]
    default = ServerSettings.model_fields[name].default
    assert value != default
    assert getattr(read_settings({}, environment={}), name) == default

    number = isinstance(value, int | float)
    text = (
        f"{name} = {typed if number else f'{[typed]}' if isinstance(value, tuple) else repr(typed)}"
    )
    config = tmp_path / "server.toml"
    config.write_text(text + "\n")
    assert getattr(read_settings({}, config, {}), name) == value
    # The variable has the default value here, so that it differs from the value of the file.
    said = {variable(name): " ".join(default) if isinstance(default, tuple) else str(default)}
    if default is not None:
        assert getattr(read_settings({}, config, said), name) == default
    assert getattr(read_settings({name: value}, None, said), name) == value


def test_wrong_values_are_sentences(tmp_path: Path) -> None:
    config = tmp_path / "server.toml"
    for text, words in (
        ("max_byte = 5", "setting 'max_byte' is unknown (did you mean 'max_bytes'?)"),
        ("port = 70000", "setting 'port': input should be less than or equal to 65535"),
        ("port", "is not TOML"),
    ):
        config.write_text(text)
        with pytest.raises(CouceError, match=re.escape(words)):
            read_settings({}, config, {})
    with pytest.raises(CouceError, match="cannot be read"):
        read_settings({}, tmp_path / "absent.toml", {})
    with pytest.raises(CouceError, match="setting 'queue'"):
        read_settings({}, None, {"COUCE_QUEUE": "many"})


def test_several_values_of_a_variable_are_separated_by_spaces() -> None:
    said = {"COUCE_ORIGIN": "https://a.example https://b.example"}
    assert read_settings({}, None, said).origin == ("https://a.example", "https://b.example")
