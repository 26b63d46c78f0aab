"""`couce serve`, `couce search` and `couce key` as processes."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import numpy as np
import pytest
import urllib3

from couce.client import Client, ServerError

from .conftest import CLASSES, EACH, picture, running, wait_until_ready


def couce(folder: Path, *arguments: str, code: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "couce", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "COLUMNS": "200"},
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_the_road_as_typed(folder: Path) -> None:
    with running(folder) as (address, _):
        found = couce(folder, "search", "gallery/class-1/2.png", "--server", address, "-k", "2")
        assert "1.000" in found
        assert "class-1" in found
        by_label = couce(
            folder, "search", "gallery/class-1/2.png", "--server", address, "--by-label"
        )
        assert all(f"class-{n}" in by_label for n in range(CLASSES))
        wrong = couce(folder, "search", "model.onnx", "--server", address, code=2)
        assert "not an image" in wrong
    assert "check the address" in couce(
        folder, "search", "gallery/class-1/2.png", "--server", address, code=2
    )


def test_errors_at_the_start_are_sentences(folder: Path) -> None:
    for arguments, says in (
        (["--index", "nowhere"], "couce index build"),
        (["--model", "nowhere.onnx"], "couce export"),
        (["--index", "nowhere", "--workers", "2"], "couce index build"),
        (["--host", "::"], "couce key new"),
        (["--host", "::", "--workers", "2"], "couce key new"),
        (["--host", "192.0.2.1"], "cannot listen on"),
        (["--keys", "perhaps"], "'keys'"),
        (["--state", "model.onnx"], "ot a directory"),
        (["--index", "birds", "--host", "::"], "--state birds/server"),
        (["--index", "milvus+http://127.0.0.1:1/x"], "--state"),
    ):
        said = couce(folder, "serve", "--port", "0", *arguments, code=2)
        assert says in said
        assert "Traceback" not in said
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        assert "cannot listen on" in couce(folder, "serve", "--port", port, code=2)


def test_runs_without_torch(folder: Path) -> None:
    program = (
        "import sys; sys.modules['torch'] = None; sys.argv = ['couce', 'serve', '--port', '0'];"
        "from couce.cli import main; main()"
    )
    process = subprocess.Popen(
        [sys.executable, "-u", "-c", program], cwd=folder, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        assert "Serving at" in process.stdout.readline()
    finally:
        process.terminate()
        process.wait(30)
        process.stdout.close()


def test_stopping_finishes_what_was_taken(folder: Path) -> None:
    with running(folder) as (address, process):
        host, port = address.removeprefix("http://").split(":")
        image = picture(3)
        head = f"POST /search HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(image)}\r\n\r\n"
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(head.encode() + image[:10])
            time.sleep(0.3)
            process.send_signal(signal.SIGTERM)
            time.sleep(0.3)
            with pytest.raises(OSError, match="refused"):
                socket.create_connection((host, int(port)))
            connection.sendall(image[10:])
            assert connection.recv(100).startswith(b"HTTP/1.1 200")
        process.wait(30)


def test_several_processes_share_one_index(folder: Path) -> None:
    with running(folder, "--workers", "2") as (address, _):
        wait_until_ready(address)

        def everyone(path: str) -> list[int]:
            """The statuses over 20 new connections, so that both processes get some of them."""
            return [
                urllib3.PoolManager(1, retries=5).request("GET", address + path).status
                for _ in range(20)
            ]

        client = Client(address)
        for seed in range(50, 60):
            client.add(picture(seed), id=f"i{seed}")
        assert everyone("/items/i55") == [200] * 20
        client.remove("i55")
        assert everyone("/items/i55") == [404] * 20
        text = urllib3.request("GET", f"{address}/metrics").data.decode()
        seen = [
            float(line.rsplit(" ", 1)[1])
            for line in text.splitlines()
            if line.startswith("couce_requests_total") and '/items/{id}"' in line
        ]
        assert sum(seen) == 41  # the requests to both processes
        assert urllib3.request("POST", f"{address}/admin/reload").status == 200
        time.sleep(2.5)  # the other process reloads within seconds
        assert len(client.search(picture(50), k=100).hits) == CLASSES * EACH + 9


def test_the_client(folder: Path) -> None:
    key = couce(folder, "key", "new", "me", "--role", "admin").split()[0]
    assert "me  admin" in couce(folder, "key", "list")
    assert "already" in couce(folder, "key", "new", "me", code=2)
    with running(folder) as (address, _):
        with pytest.raises(ServerError) as refused:
            Client(address).info()
        assert (refused.value.status, refused.value.code) == (401, "unauthorized")
        client = Client(address, key)
        assert client.info()["index"]["items"] == CLASSES * EACH
        added = client.add(picture(9), label="x", metadata={"a": [1]})
        assert client.get(added.id) == added
        assert client.search(picture(9), k=1).hits[0].id == added.id
        assert client.search(id=added.id, k=3, filter=["label=class-1"]).hits[0].label == "class-1"
        (row,) = client.embed([picture(9)])
        assert client.search(vector=row, k=1).hits[0].score == pytest.approx(1)
        assert np.linalg.norm(row) == pytest.approx(1)
        assert client.picture(added.id)[:2] == b"\xff\xd8"
        assert len(list(client.items())) == CLASSES * EACH + 1
        assert client.evaluate(every=0.05)["metrics"]["R@1"] >= 0
        client.remove(added.id)
        with pytest.raises(ServerError, match="no item"):
            client.get(added.id)
        couce(folder, "key", "revoke", "me")
        with pytest.raises(ServerError, match="key"):
            client.info()


def test_the_client_comes_back_when_it_is_told_to() -> None:
    times: list[float] = []

    class Busy(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            times.append(time.monotonic())
            busy = len(times) < 3
            body = json.dumps({"detail": "busy", "code": "overloaded"} if busy else {}).encode()
            self.send_response(429 if busy else 200)
            self.send_header("Retry-After", "1")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_DELETE(self) -> None:
            """The item is removed, but only the second try gets an answer."""
            times.append(time.monotonic())
            if len(times) == 1:
                self.close_connection = True
                return
            body = json.dumps({"detail": "there is no item", "code": "not_found"}).encode()
            self.send_response(404)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Busy)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        address = f"http://127.0.0.1:{server.server_port}"
        assert Client(address).info() == {}
        assert len(times) == 3
        assert times[2] - times[0] >= 2
        times.clear()
        with pytest.raises(ServerError, match="busy"):
            Client(address, retries=0).info()
        times.clear()
        Client(address).remove("a")
        assert len(times) == 2
        with pytest.raises(ServerError, match="no item"):
            Client(address).remove("a")
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
