"""The server does what its OpenAPI description says, for requests that are made from it."""

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .conftest import picture
from .serving import Server, serving

EXAMPLES = 10  # random requests for each operation, besides its examples and its limits
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "negative_data_rejection",
    "unsupported_method",
    "ignored_auth",
)


@pytest.fixture
def key(tmp_path: Path) -> str:
    """A key with the role admin."""
    command = [sys.executable, "-m", "couce", "key", "new", "tester", "--role", "admin"]
    said = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    found = re.search(r"couce_\S+", said)
    assert found
    return found.group()


@pytest.fixture
def server(tmp_path: Path, key: str, make_model: Callable[..., Path]) -> Iterator[Server]:
    make_model()
    with serving(tmp_path, "--new-index") as found:
        for seed in range(3):
            added = found.ask(
                "POST",
                f"/items?id=i{seed}&label=wren",
                picture(seed),
                headers={"Authorization": f"Bearer {key}"},
            )
            assert added.status == 201, added
        yield found
        assert found.faults() == []


def test_answers_are_as_described(server: Server, key: str) -> None:
    """schemathesis sends the same requests each time and checks the answers."""
    run = subprocess.run(
        [
            *(sys.executable, "-m", "schemathesis.cli", "run"),
            f"http://127.0.0.1:{server.port}/openapi.json",
            *("--header", f"Authorization: Bearer {key}"),
            *("--checks", ",".join(CHECKS)),
            *("--phases", "examples,coverage,fuzzing"),
            *("--max-examples", str(EXAMPLES)),
            *("--generation-deterministic", "--seed", "1"),
            *("--request-timeout", "60", "--continue-on-failure", "--no-color"),
        ],
        cwd=server.folder,
        capture_output=True,
        text=True,
    )
    print(run.stdout[-5000:])
    assert run.returncode == 0, run.stdout[-20_000:] + run.stderr
    asked = [json.loads(line)["route"] for line in server.log.read_text().splitlines()]
    described = json.loads(server.ask("GET", "/openapi.json").body)["paths"]
    assert set(described) <= set(asked)


def test_everything_is_described(server: Server) -> None:
    """Every operation has a summary, every answer a schema with examples, every error its code."""
    schema = json.loads(server.ask("GET", "/openapi.json").body)
    operations = [each for path in schema["paths"].values() for each in path.values()]
    assert len(operations) == 18
    for operation in operations:
        assert operation["summary"]
        for status, answer in operation["responses"].items():
            assert "X-Request-Id" in answer["headers"]
            if status in ("204", "304"):
                continue
            for kind, content in answer["content"].items():
                assert content["schema"]
                if int(status) >= 400:
                    assert kind == "application/problem+json"
                    assert {e["value"]["status"] for e in content["examples"].values()} == {
                        int(status)
                    }
    for name, body in schema["components"]["schemas"].items():
        said = json.dumps(body)
        assert any(f'"{word}"' in said for word in ("examples", "const", "$ref")), name
