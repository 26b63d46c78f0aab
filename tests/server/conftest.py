"""Fixtures: a tiny real model, a small gallery with its index, and servers over both."""

import io
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import urllib3
from fastapi.testclient import TestClient
from PIL import Image

from couce.index.commands import build_index
from couce.server import ServerSettings, create_app

CLASSES, EACH = 3, 4


def picture(seed: int, size: tuple[int, int] = (24, 20), kind: str = "PNG") -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind)
    return file.getvalue()


@pytest.fixture
def folder(tmp_path: Path, make_model: Callable[..., Path]) -> Path:
    """A folder with model.onnx, gallery/ with three classes of four images, and its index/."""
    make_model()
    for label in range(CLASSES):
        for number in range(EACH):
            path = tmp_path / "gallery" / f"class-{label}" / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(picture(10 * label + number))
    build_index(tmp_path / "gallery", tmp_path / "model.onnx", str(tmp_path / "index"))
    return tmp_path


Serve = Callable[..., TestClient]


@pytest.fixture
def serve(folder: Path) -> Iterator[Serve]:
    """Starts the application in this process, with the settings that a test gives."""
    opened: list[TestClient] = []

    def start(**settings: Any) -> TestClient:
        values = {"model": folder / "model.onnx", "index": str(folder / "index"), **settings}
        client = TestClient(
            create_app(ServerSettings.parse(values)),
            base_url="http://localhost",
            raise_server_exceptions=False,
        )
        client.__enter__()
        opened.append(client)
        return client

    yield start
    for client in opened:
        client.__exit__(None, None, None)


@pytest.fixture
def client(serve: Serve) -> TestClient:
    return serve()


@contextmanager
def running(folder: Path, *options: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Runs `couce serve` in ``folder``, and yields its address and its process."""
    process = subprocess.Popen(
        [sys.executable, "-m", "couce", "serve", "--port", "0", *options],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=(folder / "server.log").open("a"),
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        found = re.search(r"http://[\d.]+:\d+", process.stdout.readline())
        assert found, (folder / "server.log").read_text()
        yield found.group(), process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
        process.stdout.close()  # type: ignore[union-attr]


def wait_until_ready(address: str) -> None:
    retries = urllib3.Retry(
        total=None, connect=200, read=200, status=200, status_forcelist=[503], backoff_factor=0
    )
    assert urllib3.request("GET", f"{address}/readyz", retries=retries).status == 200
