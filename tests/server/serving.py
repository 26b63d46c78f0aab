"""`couce serve` as a process of its own, and a client that can send arbitrary bytes."""

import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image


class Answer(NamedTuple):
    status: int  # 0: the server closed the connection without an answer
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


class Server:
    """A server process in ``folder``, with model.onnx and index/ (or --new-index)."""

    def __init__(self, folder: Path, *options: str, port: int = 0) -> None:
        self.folder = folder
        self.log = folder / "server.log"
        self.process = subprocess.Popen(
            [sys.executable, "-m", "couce", "serve", "--port", str(port), *options],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=self.log.open("a"),
            text=True,
            start_new_session=True,
        )
        assert self.process.stdout is not None
        found = re.search(r"http://127\.0\.0\.1:(\d+)", self.process.stdout.readline())
        assert found, self.log.read_text()
        self.port = int(found.group(1))
        while self.ask("GET", "/readyz").status != 200:
            time.sleep(0.05)

    def connect(self, seconds: float = 60) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=seconds)

    def say(self, *parts: bytes, pause: float = 0, seconds: float = 60) -> Answer:
        """Sends bytes as they are and reads one answer."""
        with self.connect(seconds) as connection:
            try:
                for part in parts:
                    connection.sendall(part)
                    time.sleep(pause)
            except OSError:
                pass  # the server may close the connection before it has read everything
            return read_answer(connection)

    def ask(
        self,
        method: str,
        target: str | bytes,
        body: bytes = b"",
        *,
        kind: str = "",
        headers: dict[str, str] | None = None,
    ) -> Answer:
        lines = {"Host": "localhost", "Connection": "close", **(headers or {})}
        if body or method in ("POST", "PUT"):
            lines.setdefault("Content-Length", str(len(body)))
        if kind:
            lines["Content-Type"] = kind
        path = target if isinstance(target, bytes) else target.encode()
        head = b"%s %s HTTP/1.1\r\n" % (method.encode(), path)
        head += b"".join(f"{k}: {v}\r\n".encode("latin-1") for k, v in lines.items())
        return self.say(head + b"\r\n" + body)

    def ask_json(self, method: str, target: str, value: Any, **options: Any) -> Answer:
        text = value if isinstance(value, bytes) else json.dumps(value).encode()
        return self.ask(method, target, text, kind="application/json", **options)

    def ask_form(self, target: str, *parts: tuple[str, bytes], **options: Any) -> Answer:
        body, kind = form(*parts)
        return self.ask("POST", target, body, kind=kind, **options)

    def faults(self) -> list[str]:
        """The lines of the log that do not belong to a request."""
        return [
            line
            for line in self.log.read_text().splitlines()
            if not line.startswith('{"time"') and line.strip()
        ]

    def decoders(self) -> list[int]:
        """The ids of the processes that decode.

        They are children of the fork server, which is a child of the server.
        """
        found = []
        for pid in descendants(self.process.pid):
            with suppress(OSError):
                if b"forkserver" in Path(f"/proc/{parent_of(pid)}/cmdline").read_bytes():
                    found.append(pid)
        return found

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self, seconds: float = 40) -> int:
        """Asks the server to stop, and returns its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(seconds)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait()
                raise
        if self.process.stdout is not None:
            self.process.stdout.close()
        return self.process.returncode


@contextmanager
def serving(folder: Path, *options: str) -> Iterator[Server]:
    server = Server(folder, *options)
    try:
        yield server
    finally:
        server.stop()


def descendants(pid: int) -> list[int]:
    """The children of a process, their children, and so on."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            children.setdefault(parent_of(int(path.name)), []).append(int(path.name))
    found, left = [], [pid]
    while left:
        mine = children.get(left.pop(), [])
        found += mine
        left += mine
    return found


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def memory(pid: int) -> float:
    """The private memory of a process in MB; 0 if it has ended."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    sizes = [int(line.split()[1]) for line in lines if line.startswith("Private_")]
    return sum(sizes) / 1024


def read_answer(connection: socket.socket) -> Answer:
    data = b""
    try:
        while b"\r\n\r\n" not in data:
            chunk = connection.recv(65536)
            if not chunk:
                return Answer(0, {}, data)
            data += chunk
        head, _, body = data.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in lines)}
        length = int(headers.get("content-length", "0"))
        while len(body) < length:
            chunk = connection.recv(65536)
            if not chunk:
                break
            body += chunk
    except ConnectionError:
        return Answer(0, {}, data)
    return Answer(int(first.split(" ")[1]), headers, body)


def form(*parts: tuple[str, bytes], boundary: str = "b0undary") -> tuple[bytes, str]:
    """A multipart body and its type. The fields image, queries and embeddings are files."""
    body = b""
    for name, value in parts:
        file = '; filename="x"' if name in ("image", "queries", "embeddings") else ""
        head = f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"{file}\r\n\r\n'
        body += head.encode() + value + b"\r\n"
    return body + f"--{boundary}--\r\n".encode(), f"multipart/form-data; boundary={boundary}"


def picture(seed: int, kind: str = "PNG", size: tuple[int, int] = (24, 20)) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind)
    return file.getvalue()


def wait_for(condition: Callable[[], object], seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "the condition did not become true in time"
        time.sleep(0.05)
