"""Connections are closed if a request does not begin or its head does not end in time."""

import socket
import threading
import time
from collections.abc import Iterator

import pytest
import uvicorn
from starlette.responses import PlainTextResponse

from couce.server.http import protocol


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    monkeypatch.setattr(protocol, "_SECONDS", 0.5)
    config = uvicorn.Config(
        PlainTextResponse("here"), http=protocol.Protocol, ws="none", log_config=None
    )
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        yield listening.getsockname()[1]
        server.should_exit = True
        thread.join()


@pytest.mark.parametrize("said", [b"", b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Slow: "])
def test_who_does_not_come_to_the_point_is_given_up(port: int, said: bytes) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.sendall(said)
        assert connection.recv(100) == b""  # closed, without an answer


def test_a_head_in_pieces_is_answered_and_the_connection_kept(port: int) -> None:
    """Each head has its own time limit. A pause between two requests does not count."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        for _ in range(2):
            for piece in (b"GET / HTTP/1.1\r\n", b"Host: localhost\r\n", b"\r\n"):
                connection.sendall(piece)
                time.sleep(0.05)
            answer = b""
            while not answer.endswith(b"here"):
                answer += connection.recv(1000)
            assert answer.startswith(b"HTTP/1.1 200")
            time.sleep(0.7)  # idle for longer than a head may take
