"""Measures the search server under load, and compares it with its bounds and with other servers.

    python benchmarks/serve_load.py MODEL.onnx FOLDER [--clients 1,8,32,128] [--seconds 10]
        [--rounds 3] [--peers PYTHON]

`couce serve` runs over an index of the images in FOLDER. Clients in this process send the same
images to /search over connections that stay open. The server takes turns with its bounds, which are
measured in a process of their own. The bound of throughput is `Embedder` on the same images. The
bound of latency is decoding, model and search one after the other.

PYTHON is an interpreter with couce, litserve and bentoml. If it is given, servers with these
libraries and a plain FastAPI handler take turns, too (benchmarks/peers). A client that gets the
status 429 waits as long as the answer says. The clients share the cores with the server, so their
share of the cores is printed.

At the end, 32 clients search while an evaluation of 30,000 embeddings runs. Then requests come at
twice the measured capacity, whether the earlier ones are answered or not.
"""

import argparse
import asyncio
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import uvloop

from couce.client import Client
from couce.data.folders import image_files
from couce.embedder import Embedder
from couce.index import open_index
from couce.machine.cores import usable_cores

BOUNDARY = "couce-load"
SETTLE = 1.0  # seconds of load before it counts


@dataclass
class Measured:
    seconds: float = 0.0
    statuses: Counter[int] = field(default_factory=Counter)
    latencies: list[float] = field(default_factory=list)  # seconds of requests with status 200
    clients: float = 0.0  # seconds of processor time that the clients used

    @property
    def rate(self) -> float:
        return self.statuses[200] / self.seconds

    def quantile(self, q: float) -> float:
        """The quantile ``q`` of the latencies, in milliseconds."""
        return 1000 * float(np.quantile(self.latencies, q)) if self.latencies else float("nan")

    def joined(self, other: "Measured") -> "Measured":
        return Measured(
            self.seconds + other.seconds,
            self.statuses + other.statuses,
            self.latencies + other.latencies,
            self.clients + other.clients,
        )


def request_of(image: bytes, port: int) -> bytes:
    part = (
        f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="image"; filename="a.jpg"\r\n'
        "Content-Type: image/jpeg\r\n\r\n"
    ).encode()
    body = part + image + f"\r\n--{BOUNDARY}--\r\n".encode()
    head = (
        f"POST /search HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Length: {len(body)}\r\n"
        f"Content-Type: multipart/form-data; boundary={BOUNDARY}\r\n\r\n"
    )
    return head.encode() + body


class Connection:
    """A client with a minimum of HTTP, because it shares the cores with the server."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def send(self, request: bytes) -> tuple[int, int]:
        """Sends a request. Returns its status and the seconds after which to try again."""
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._streams
        writer.write(request)
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        status = int(head.split(" ", 2)[1])
        if "transfer-encoding: chunked" in head:
            while size := int(await reader.readuntil(b"\r\n"), 16):
                await reader.readexactly(size + 2)
            await reader.readexactly(2)
        else:
            await reader.readexactly(int(head.split("content-length: ")[1].split("\r\n")[0]))
        wait = head.split("retry-after: ")[1].split("\r\n")[0] if "retry-after: " in head else "0"
        if "connection: close" in head:
            self.close()
        return status, int(wait)

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


async def closed_loop(requests: list[bytes], port: int, clients: int, seconds: float) -> Measured:
    """Runs ``clients`` clients that each send one request at a time."""
    measured = Measured(seconds)
    begin = time.perf_counter() + SETTLE
    end = begin + seconds

    async def client(number: int) -> None:
        connection = Connection(port)
        turn = number * 37
        while time.perf_counter() < end:
            began = time.perf_counter()
            status, wait = await connection.send(requests[turn % len(requests)])
            ended = time.perf_counter()
            turn += 1
            if begin <= ended <= end:
                measured.statuses[status] += 1
                if status == 200:
                    measured.latencies.append(ended - began)
            if wait:
                await asyncio.sleep(min(wait, max(0.0, end - time.perf_counter())))
        connection.close()

    async def watch() -> None:
        await asyncio.sleep(SETTLE)
        before = time.process_time()
        await asyncio.sleep(seconds)
        measured.clients = time.process_time() - before

    await asyncio.gather(watch(), *(client(number) for number in range(clients)))
    return measured


async def open_loop(requests: list[bytes], port: int, rate: float, seconds: float) -> Measured:
    """Sends ``rate`` requests a second, whether the earlier ones are answered or not."""
    measured = Measured(seconds)
    free: list[Connection] = []
    start = time.perf_counter()

    async def one(number: int) -> None:
        connection = free.pop(0) if free else Connection(port)
        began = time.perf_counter()
        status, _ = await connection.send(requests[number % len(requests)])
        measured.statuses[status] += 1
        if status == 200:
            measured.latencies.append(time.perf_counter() - began)
        free.append(connection)

    tasks = []
    for number in range(int(rate * seconds)):
        await asyncio.sleep(max(0.0, start + number / rate - time.perf_counter()))
        tasks.append(asyncio.create_task(one(number)))
    await asyncio.gather(*tasks)
    for connection in free:
        connection.close()
    return measured


def wait_for_port(
    port: int, listening: bool, process: subprocess.Popen[bytes] | None = None
) -> bool:
    """Waits up to a minute until the port listens, or until it no longer does.

    Returns whether this happened before the minute, or ``process``, ended.
    """
    for _ in range(600):
        try:
            socket.create_connection(("127.0.0.1", port), 0.2).close()
            found = True
        except OSError:
            found = False
        if found == listening:
            return True
        if process is not None and process.poll() is not None:
            return False
        time.sleep(0.1)
    return False


@contextmanager
def server(command: list[str], port: int, log: Path) -> Iterator[None]:
    with log.open("w") as out:
        process = subprocess.Popen(
            command, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        if not wait_for_port(port, True, process):
            sys.exit(f"{command} does not listen: {log.read_text()[-2000:]}")
        time.sleep(3)  # some servers listen before they have loaded the model
        yield
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(30)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    # The workers of BentoML have a session of their own. They run on for a while and keep the port.
    if not wait_for_port(port, False):
        sys.exit(f"{command} still listens a minute after it was stopped")


def reference(model: Path, index: Path, files: list[Path], seconds: float) -> dict[str, float]:
    """The result of :func:`bare`, measured in a process of its own."""
    program = f"""
import json, sys, time
from serve_load import bare
print(json.dumps(bare({str(model)!r}, {str(index)!r}, {[str(f) for f in files]!r}, {seconds})))
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=Path(__file__).parent,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


def bare(model: str, index: str, files: list[str], seconds: float) -> dict[str, float]:
    """Images/s of the embedder, and milliseconds of decoding, model and search in a row."""
    images = [Path(file).read_bytes() for file in files]
    embedder = Embedder(model)
    gallery = open_index(index)
    embedder.embed(images[: 2 * embedder.batch])
    done, began = 0, time.perf_counter()
    while time.perf_counter() < began + seconds:
        done += len(embedder.embed(images))
    rate = done / (time.perf_counter() - began)
    times = []
    until = time.perf_counter() + seconds / 2
    while time.perf_counter() < until:
        for image in images[:20]:
            start = time.perf_counter()
            gallery.search(embedder.run(embedder.decode(image)[None]), 10)
            times.append(time.perf_counter() - start)
    return {"images/s": rate, "ms": 1000 * statistics.median(times)}


def many_vectors(scratch: Path) -> Path:
    """Writes an npz whose evaluation takes a while."""
    rng = np.random.default_rng(0)
    path = scratch / "vectors.npz"
    np.savez(
        path,
        embeddings=rng.standard_normal((30_000, 512)).astype(np.float32),
        labels=np.arange(30_000) // 60,
    )
    return path


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("model", type=Path, help="The ONNX model, from `couce export`.")
    parser.add_argument("folder", type=Path, help="A folder of images.")
    parser.add_argument("--images", type=int, default=256, help="How many images to use.")
    parser.add_argument("--clients", default="1,8,32,128", help="Numbers of clients to measure.")
    parser.add_argument("--seconds", type=float, default=10, help="Seconds of each measurement.")
    parser.add_argument("--rounds", type=int, default=3, help="How often each server has its turn.")
    parser.add_argument(
        "--peers", type=Path, help="A Python interpreter with couce, litserve and bentoml."
    )
    arguments = parser.parse_args()
    counts = [int(count) for count in arguments.clients.split(",")]
    files = image_files(arguments.folder.absolute())
    files = files[:: max(1, len(files) // arguments.images)][: arguments.images]
    with tempfile.TemporaryDirectory() as scratch:
        run(Path(scratch), arguments, files, counts)


def run(scratch: Path, arguments: argparse.Namespace, files: list[Path], counts: list[int]) -> None:
    index = scratch / "index"
    gallery = scratch / "gallery"
    gallery.mkdir()
    for number, file in enumerate(files):
        (gallery / f"{number}{file.suffix}").symlink_to(file)
    couce = [sys.executable, "-m", "couce"]
    model = arguments.model.absolute()
    subprocess.run(
        [*couce, "index", "build", str(gallery), "--model", str(model), "--out", str(index)],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    given = ["--model", str(model), "--index", str(index), "--port", str(port)]
    commands = {"couce": [*couce, "serve", *given]}
    if arguments.peers is not None:
        os.environ |= {"PEER_MODEL": str(model), "PEER_INDEX": str(index)}
        for name in ("plain", "lit", "bento"):
            script = Path(__file__).parent / "peers" / f"{name}.py"
            commands[name] = [str(arguments.peers), str(script), str(port)]
    requests = [request_of(file.read_bytes(), port) for file in files]
    found: dict[tuple[str, int], Measured] = {}
    references: list[dict[str, float]] = []
    ratios: list[str] = []  # throughput of 32 clients / embedder, for each turn
    for turn in range(arguments.rounds):
        references.append(reference(model, index, files, arguments.seconds))
        for name, command in commands.items():
            with server(command, port, scratch / f"{name}.log"):
                for count in counts:
                    new = uvloop.run(closed_loop(requests, port, count, arguments.seconds))
                    found[name, count] = found.get((name, count), Measured()).joined(new)
                    if (name, count) == ("couce", 32):
                        ratios.append(f"{new.rate / references[-1]['images/s']:.3f}")
        print(f"turn {turn + 1} of {arguments.rounds}", file=sys.stderr, flush=True)
    rate = statistics.fmean(each["images/s"] for each in references)
    alone = statistics.fmean(each["ms"] for each in references)
    print(f"{model.name}, {len(files)} images, {arguments.rounds} turns of {arguments.seconds:g} s")
    print(f"Embedder {rate:.1f} images/s; decode + model + search {alone:.1f} ms")
    print(f"{'':10}{'clients':>8}{'searches/s':>12}{'p50 ms':>9}{'p99 ms':>9}  statuses")
    for (name, count), each in found.items():
        print(
            f"{name:10}{count:8}{each.rate:12.1f}"
            f"{each.quantile(0.5):9.1f}{each.quantile(0.99):9.1f}"
            f"  {dict(sorted(each.statuses.items()))}"
        )
    if ("couce", 1) in found:
        single = found["couce", 1].quantile(0.5)
        print(f"one client: {single:.1f} ms = {single / alone:.3f} times the steps alone")
    if ("couce", 32) in found:
        at = found["couce", 32]
        taken = at.clients / (at.seconds * usable_cores())
        print(
            f"32 clients: {at.rate / rate:.3f} of Embedder's throughput"
            f" (turns {', '.join(ratios)}); the clients used {taken:.1%} of the cores;"
            f" relative to the other cores it is {at.rate / (1 - taken) / rate:.3f}"
        )
        with server(commands["couce"], port, scratch / "couce.log"):
            before = uvloop.run(closed_loop(requests, port, 32, arguments.seconds))
            client = Client(f"http://127.0.0.1:{port}")
            evaluation = threading.Thread(
                target=client.evaluate, args=(None, many_vectors(scratch))
            )
            evaluation.start()
            during = uvloop.run(closed_loop(requests, port, 32, arguments.seconds))
            state = "still ran" if evaluation.is_alive() else "had ended"
            evaluation.join()
            over = uvloop.run(open_loop(requests, port, 2 * at.rate, 2 * arguments.seconds))
        print(
            f"during an evaluation (it {state} at the end): {during.rate / before.rate:.3f} of the"
            " throughput without one,"
            f" {during.quantile(0.99) / before.quantile(0.99):.2f} times its p99"
        )
        print(
            f"twice that rate: {over.rate:.1f} searches/s, p99 {over.quantile(0.99):.1f} ms ="
            f" {over.quantile(0.99) / at.quantile(0.99):.2f} times that at capacity,"
            f" statuses {dict(sorted(over.statuses.items()))}"
        )


if __name__ == "__main__":
    main()
