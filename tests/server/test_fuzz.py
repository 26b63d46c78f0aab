"""A real server answers thousands of broken and hostile images, and leaks nothing."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from .mutants import CHANGES, Mutant, Mutants
from .serving import Server, form, memory, serving

MANY, FEW = 50_000, 400
CONNECTIONS = 12
WARM = 5_000  # after so many requests, libraries and allocators have all memory that they need
# How much the server itself may grow after that, in MB. The bytes of a request, its pixels and its
# answer must be freed. A leak of 1 KB a request, less than the smallest image, would add up to 45.
SERVER_GROWTH = 16
# The most memory of a process that decodes. It may keep the memory of its largest image.
DECODER_MOST = 512

# The status 429 must not occur, because there are fewer connections than images that may wait.
EXPECTED = {200, 400, 415, 422}


def head(mutant: Mutant) -> bytes:
    body, kind = mutant.content, mutant.type
    if mutant.form:
        body, kind = form(("image", mutant.content))
    typed = f"Content-Type: {kind}\r\n" if kind else ""
    lines = "POST /search?k=3 HTTP/1.1\r\nHost: localhost\r\n"
    lines += f"{typed}Content-Length: {len(body)}\r\n\r\n"
    return lines.encode("latin-1") + body


class Run:
    """Sends ``count`` mutants over several connections at once, and records the answers."""

    def __init__(self, server: Server, count: int) -> None:
        self.server, self.count = server, count
        self.mutants = Mutants()
        self.statuses: Counter[int] = Counter()
        self.unexpected: list[tuple[int, str, str, int, bytes]] = []
        self.memory: list[tuple[int, float, list[int]]] = []
        self._left = iter(range(count))
        self._done = 0

    async def everything(self) -> None:
        await asyncio.gather(*(self._connection() for _ in range(CONNECTIONS)))
        self._weigh()

    async def _connection(self) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.server.port)
        for n in self._left:
            mutant = self.mutants[n]
            writer.write(head(mutant))
            status, body = await asyncio.wait_for(_answer(reader), 60)
            self.statuses[status] += 1
            if status not in EXPECTED:
                self.unexpected.append((n, mutant.seed, mutant.change, status, body[:300]))
            self._done += 1
            if self._done % 10_000 == 0 or self._done == WARM:
                self._weigh()
        writer.close()

    def _weigh(self) -> None:
        decoders = [round(memory(pid)) for pid in self.server.decoders()]
        self.memory.append((self._done, memory(self.server.process.pid), decoders))
        print(f"{self._done} images: server {self.memory[-1][1]:.0f} MB, decoders {decoders} MB")


async def _answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    (length,) = [line.split(":")[1] for line in lines if line.lower().startswith("content-length")]
    return int(lines[0].split(" ")[1]), await reader.readexactly(int(length))


def fuzzed(folder: Path, make_model: Callable[..., Path], count: int) -> Run:
    make_model()
    with serving(folder, "--new-index") as server:
        known = server.ask("POST", "/items", Mutants().seeds["png"], kind="image/png")
        assert known.status == 201, known
        pid, decoders = server.process.pid, len(server.decoders())
        run = Run(server, count)
        began = time.monotonic()
        asyncio.run(run.everything())
        took = time.monotonic() - began
        print(f"{count} images in {took:.0f} s, {count / took:.0f} a second: {dict(run.statuses)}")
        print("not expected:", run.unexpected[:20])
        assert run.unexpected == []
        assert sum(run.statuses.values()) == count
        assert server.process.poll() is None
        assert server.process.pid == pid
        assert server.ask("GET", "/healthz").json() == {"status": "alive"}
        found = server.ask("POST", "/search", Mutants().seeds["png"], kind="image/png")
        assert found.json()["hits"][0]["id"] == known.json()["id"]
        assert len(server.decoders()) == decoders
        assert server.faults() == []
    return run


def test_some_mutants(tmp_path: Path, make_model: Callable[..., Path]) -> None:
    run = fuzzed(tmp_path, make_model, FEW)
    # The test needs both kinds: images that are still good, and images that are not.
    assert run.statuses[200] > FEW // 10
    assert run.statuses[422] > FEW // 10


@pytest.mark.slow
def test_many_mutants(tmp_path: Path, make_model: Callable[..., Path]) -> None:
    run = fuzzed(tmp_path, make_model, MANY)
    (warm,) = [size for done, size, _ in run.memory if done == WARM]
    end = run.memory[-1][1]
    assert end < warm + SERVER_GROWTH, run.memory
    assert max(size for _, _, sizes in run.memory for size in sizes) < DECODER_MOST


def test_every_seed_and_change_comes() -> None:
    """The mutants are the same each time, too."""
    found = [Mutants()[0], *(mutant for mutant in map(Mutants().__getitem__, range(2000)))]
    assert found[0] == found[1]
    assert {each.change for each in found} == set(CHANGES)
    assert {each.seed for each in found} == set(Mutants().seeds)
