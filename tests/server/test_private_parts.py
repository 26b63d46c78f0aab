"""The server uses private parts of uvicorn and starlette, whose versions have an upper bound.

If one of these tests fails after an update, the part has changed. Adapt the module that the message
names, and raise the upper bound in pyproject.toml.
"""

import inspect
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from starlette.formparsers import MultiPartParser
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    "name",
    [
        *("connection_made", "connection_lost", "data_received", "on_message_begin"),
        *("on_headers_complete", "on_body", "on_message_complete", "on_response_complete"),
        "send_400_response",
    ],
)
def test_uvicorns_protocol(name: str) -> None:
    assert callable(getattr(HttpToolsProtocol, name, None)), (
        f"uvicorn's HttpToolsProtocol has no {name} any more; server/http/protocol.py overrides it"
    )


@pytest.mark.parametrize("name", ["transport", "loop"])
def test_uvicorns_connections(name: str) -> None:
    assert f"self.{name}" in inspect.getsource(HttpToolsProtocol), (
        f"uvicorn's HttpToolsProtocol sets no {name} any more; server/http/protocol.py uses it"
    )


@pytest.mark.parametrize("name", ["on_part_end", "on_headers_finished", "parse"])
def test_starlettes_form_parser(name: str) -> None:
    assert callable(getattr(MultiPartParser, name, None)), (
        f"starlette's MultiPartParser has no {name} any more; server/http/uploads.py overrides it"
    )


@pytest.mark.parametrize(
    "name",
    ["_current_part.file", "_current_part.data", "_current_part.content_disposition", "_charset"],
)
def test_starlettes_fields(name: str) -> None:
    assert f"self.{name}" in inspect.getsource(MultiPartParser), (
        f"starlette's MultiPartParser has no {name} any more; server/http/uploads.py uses it"
    )
    assert MultiPartParser.spool_max_size > 0


@pytest.mark.parametrize("name", ["uvicorn", "starlette"])
def test_both_have_an_upper_bound(name: str) -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        lines = tomllib.load(file)["project"]["dependencies"]
    (found,) = (line for line in map(Requirement, lines) if line.name == name)
    assert any(each.operator in ("<", "<=", "==") for each in found.specifier)
