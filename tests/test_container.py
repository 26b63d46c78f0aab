"""Checks Dockerfile, .dockerignore and compose.yaml. scripts/try-container runs the Dockerfile."""

import re
import subprocess
import sys
import threading
import tomllib
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from dockerfile import Stage, ignored, parse

from couce.cli import app
from couce.cli.serve import serve_app
from couce.server.run import _UVICORN
from couce.server.settings import ServerSettings

ROOT = Path(__file__).parent.parent
STAGES = parse((ROOT / "Dockerfile").read_text())
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())
SERVING = ("serve-cpu", "serve-gpu")
TARGETS = (*SERVING, "train-gpu")


def options_of_couce(words: list[str]) -> dict[str, Any]:
    """The values that `couce` reads from a command line. An unknown option is an error."""
    group: Any = typer.main.get_command(app)
    if words[0] != "serve":
        return group.commands[words[0]].make_context(words[0], words[1:]).params
    # This command parses its options in its body. Options that are not given are None there.
    command: Any = typer.main.get_command(serve_app(lambda **_: None))
    given = command.make_context(words[0], words[1:]).params
    fields = ServerSettings.model_fields
    return {n: fields[n].default if v is None and n in fields else v for n, v in given.items()}


def runs(stage: Stage) -> str:
    return "\n".join(text for name, text in stage.steps if name == "RUN")


def extras(text: str) -> list[str]:
    """The extras of all requirements of couce itself, such as ".[cpu]" or "couce[cpu]"."""
    return [
        name for found in re.findall(r'"(?:\.|couce)\[(.*?)\]"', text) for name in found.split(",")
    ]


def test_the_targets() -> None:
    assert set(TARGETS) <= set(STAGES)
    assert list(STAGES)[-1] == "serve-cpu"  # it is built if no target is named


def test_an_unknown_instruction_is_refused() -> None:
    with pytest.raises(ValueError, match="ADD is not supported"):
        parse("FROM a AS b\nADD https://example.org/x /x")


@pytest.mark.parametrize("name", TARGETS)
def test_the_installed_packages_are_the_fetched_ones(name: str) -> None:
    (wheels,) = re.findall(r"from=([\w-]+)", runs(STAGES[name]))
    installed = extras(runs(STAGES[name]))
    assert installed == extras(runs(STAGES[wheels]))
    assert len({"cpu", "gpu", "gpu-cu13"} & set(installed)) == 1
    with (ROOT / "pyproject.toml").open("rb") as file:
        project = tomllib.load(file)["project"]
    lines = [*project["dependencies"]]
    lines += [line for extra in installed for line in project["optional-dependencies"][extra]]
    torch = [line for line in lines if line.startswith("torch")]
    assert bool(torch) == (name == "train-gpu")


@pytest.mark.parametrize("name", SERVING)
def test_serving_has_neither_torch_nor_compilers_nor_caches(name: str) -> None:
    assert not re.search(r"torch|gcc|build-essential|python3-dev", runs(STAGES[name]))
    assert "pip install --no-cache-dir --no-index" in runs(STAGES[name])


@pytest.mark.parametrize("name", TARGETS)
def test_nobody_is_root(name: str) -> None:
    stage = STAGES[name]
    user = stage.only("USER")
    assert int(user) > 0
    assert f"useradd --uid {user} " in runs(stage)
    order = [instruction for instruction, _ in stage.steps]
    assert order.index("USER") > len(order) - 1 - order[::-1].index("RUN")
    assert (stage.only("WORKDIR"), stage.only("VOLUME")) == ("/data", "/data")


@pytest.mark.parametrize("name", TARGETS)
def test_nothing_is_reported_to_the_makers_of_onnxruntime(name: str) -> None:
    assert "ORT_DISABLE_TELEMETRY=1" in STAGES[name].only("ENV").split()


def test_one_python_everywhere() -> None:
    """The CUDA image is made of Ubuntu 24.04, which has 3.12. Wheels for another do not fit."""
    bases = {stage.base for stage in STAGES.values() if stage.base not in STAGES}
    assert bases == {
        "python:3.12-slim-bookworm",
        "nvidia/cuda:12.9.1-cudnn-runtime-ubuntu24.04",
    }
    assert set(re.findall(r"python3\.\d+", STAGES["train-gpu"].only("ENV"))) == {"python3.12"}


@pytest.mark.parametrize("name", SERVING)
def test_the_command_of_the_image_is_valid(name: str) -> None:
    stage = STAGES[name]
    assert stage.words("ENTRYPOINT") == ["couce"]
    given = options_of_couce(stage.words("CMD"))
    assert given["host"] == "0.0.0.0"  # noqa: S104
    assert not ServerSettings(host=given["host"]).local  # so it requires keys
    assert str(given["port"]) == stage.only("EXPOSE")
    assert f"http://127.0.0.1:{given['port']}/readyz" in stage.words("HEALTHCHECK")[-1]
    assert stage.only("STOPSIGNAL") == "SIGTERM"


@pytest.mark.parametrize("name", SERVING)
@pytest.mark.parametrize(("status", "healthy"), [(200, True), (503, False)])
def test_the_health_check_asks_readyz(name: str, status: int, healthy: bool) -> None:
    asked = []

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        server.timeout = 30
        threading.Thread(target=server.handle_request, daemon=True).start()
        _, *words = STAGES[name].words("HEALTHCHECK")
        words[-1] = words[-1].replace(":8000/", f":{server.server_port}/")
        elsewhere = {"http_proxy": "http://127.0.0.1:9"}  # a proxy that must not be used
        done = subprocess.run(
            [sys.executable, *words], env=elsewhere, capture_output=True, check=False
        )
    assert (done.returncode == 0) == healthy
    assert asked == ["/readyz"]


def test_a_build_gets_the_source_and_nothing_else() -> None:
    patterns = (ROOT / ".dockerignore").read_text()
    for name in ("pyproject.toml", "README.md", "LICENSE", "couce/cli/serve.py", "couce/train"):
        assert (ROOT / name).exists()
        assert not ignored(Path(name), patterns)
    for room in ("train", "export", "index", "server"):
        assert not ignored(Path(room, "__init__.py"), patterns)
    left_out = (
        *(".git/config", ".venv/bin/python", ".env", "data/cub/a.jpg", "runs/1/last.pt", "demo/x"),
        *("model.onnx", "index.db", "models/model.onnx", "tests/conftest.py", "couce/a.onnx"),
        *("train/best.pt", "couce/__pycache__/a.pyc", "build/lib/a.py", "compose.yaml"),
    )
    assert [name for name in left_out if not ignored(Path(name), patterns)] == []


def test_compose_is_consistent() -> None:
    services = COMPOSE["services"]
    assert set(services) == {"server", "milvus", "etcd", "minio"}
    for name, service in services.items():
        if name == "server":
            assert service["build"]["target"] in TARGETS
        else:
            assert re.search(r":(v\d+\.\d+\.\d+|RELEASE\.\d{4}-\S+Z)$", service["image"]), name
            assert service["healthcheck"]["test"][0] == "CMD"
            assert "ports" not in service
            assert service["networks"] == ["milvus"]
        for other, how in service.get("depends_on", {}).items():
            assert other in services
            assert how == {"condition": "service_healthy"}
        for volume in service["volumes"]:
            assert not isinstance(volume, str) or volume.split(":")[0] in COMPOSE["volumes"]
    assert COMPOSE["networks"]["milvus"] == {"internal": True}
    (port,) = services["server"]["ports"]
    assert re.fullmatch(r"127\.0\.0\.1:\$\{\w+:-8000\}:8000", port)
    assert int(services["server"]["stop_grace_period"][:-1]) > _UVICORN["timeout_graceful_shutdown"]


def test_every_variable_of_compose_has_a_default() -> None:
    text = (ROOT / "compose.yaml").read_text()
    variables = re.findall(r"\$\{(.*?)\}", text)
    assert variables
    assert all(re.fullmatch(r"\w+:-\S+", variable) for variable in variables)


def test_the_command_of_compose_is_valid() -> None:
    server = COMPOSE["services"]["server"]
    given = options_of_couce(server["command"])
    assert given["index"] == "milvus+http://milvus:19530/gallery"
    assert given["new_index"]
    mounted = [v.split(":")[1] if isinstance(v, str) else v["target"] for v in server["volumes"]]
    assert str(given["state"]) == f"{mounted[0]}/state"  # replicas share it
    assert str(given["model"]) == f"{mounted[1]}/model.onnx"
    pages = [ROOT / "compose.yaml", ROOT / "docs" / "operating.md"]
    keys = [line for page in pages for line in re.findall(r"server key new .*", page.read_text())]
    assert len(keys) == len(pages)
    assert all(f"--state {given['state']}" in line for line in keys)
