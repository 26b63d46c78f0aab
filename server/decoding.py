"""Images are decoded in processes of their own.

What strangers send is parsed by libraries in C. A process can be ended when one takes too long, has a limit
to its memory, and when it dies takes one request with it and not the server. Should an image take a process
over, all that it can answer with is bytes, which are taken for pixels and never unpickled.

The event loop talks to each over a socket: no thread in between, which costs less than half of what a general
process pool does.
"""

import asyncio
import multiprocessing
import os
import pickle
import resource
import signal
import socket
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from couce.machine.allocator import keep_freed_memory
from couce.preprocess import ImageError, Preprocess, open_image
from couce.server.http.problems import Problem

_MEMORY = 4 * 2**30  # of addresses, for one that decodes
_ANSWER = 64 * 2**20  # bytes, at most: the pixels of the largest crop
_GOOD, _BAD = b"\0", b"\1"
_KEPT = 128 * 2**20  # bytes of freed memory
_LENGTH = struct.Struct("<Q")  # before every message

_context = multiprocessing.get_context("forkserver")


class Decoded(NamedTuple):
    pixels: NDArray[np.uint8]  # (crop, crop, 3)
    seconds: float


class Decoder:
    """So many ``workers`` that each have ``seconds`` for an image of up to ``max_pixels``."""

    def __init__(self, workers: int, seconds: float, max_pixels: int) -> None:
        self._seconds, self._max_pixels = seconds, max_pixels
        _context.set_forkserver_preload([__name__])  # so that a new one is there at once
        self._all = [_Process() for _ in range(workers)]
        self._free: asyncio.LifoQueue[_Process] = asyncio.LifoQueue()
        for process in self._all:
            self._free.put_nowait(process)

    async def pixels(self, image: bytes, preprocess: Preprocess) -> Decoded:
        """What the model is fed."""
        found, seconds = await self._do(_pixels, image, preprocess, self._max_pixels)
        crop = preprocess.crop
        if len(found) != crop * crop * 3:
            raise _broken()
        return Decoded(np.frombuffer(found, np.uint8).reshape(crop, crop, 3), seconds)

    async def thumbnail(self, path: str, size: int) -> bytes:
        """The image of a file as a JPEG, its longer side of ``size`` pixels at most."""
        found, _ = await self._do(_thumbnail, path, size, self._max_pixels)
        return found

    async def _do(self, function: Callable[..., bytes], *arguments: Any) -> tuple[bytes, float]:
        process = await self._free.get()
        began = time.perf_counter()
        # Shielded: whoever leaves early must not cost the next one a process.
        asking = asyncio.ensure_future(self._ask(process, pickle.dumps((function, arguments))))
        answer = await asyncio.shield(asking)
        if answer[:1] != _GOOD:
            raise Problem("bad_image", answer[1:].decode(errors="replace"))
        return answer[1:], time.perf_counter() - began

    async def _ask(self, process: "_Process", task: bytes) -> bytes:
        try:
            for _ in range(2):  # it may have been ended by somebody: only twice is a reason
                try:
                    await process.ready()
                    async with asyncio.timeout(self._seconds):
                        return await process.ask(task)
                except TimeoutError:
                    await process.restart()
                    raise Problem(
                        "decode_timeout",
                        f"the image takes more than {self._seconds:g} s to decode; save it anew, or"
                        " smaller",
                    ) from None
                except (EOFError, OSError):
                    await process.restart()
            raise _broken()
        finally:
            self._free.put_nowait(process)

    async def close(self) -> None:
        for process in self._all:
            await process.end()


class _Process:
    def __init__(self) -> None:
        self._start()

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        self._process = _context.Process(target=_work, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()
        self._socket = ours
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ready(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Once it has begun, which is not the time of the image that waits for it."""
        if self._streams is None:
            self._streams = await asyncio.open_connection(sock=self._socket)
            await self._streams[0].readexactly(len(_GOOD))
        return self._streams

    async def ask(self, task: bytes) -> bytes:
        reader, writer = await self.ready()
        writer.write(_LENGTH.pack(len(task)) + task)
        await writer.drain()
        (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
        if length > _ANSWER:
            raise EOFError
        return await reader.readexactly(length)

    async def restart(self) -> None:
        await self.end()
        await asyncio.to_thread(self._start)

    async def end(self) -> None:
        if self._streams is not None:
            self._streams[1].transport.abort()  # which closes the socket
        else:
            self._socket.close()
        self._process.kill()
        await asyncio.to_thread(self._process.join)


def _work(connection: socket.socket) -> None:
    """Answers until the server is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl+C is the server's business
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    keep_freed_memory(_KEPT)  # or a third of the time goes into taking it anew for each image
    with Path(os.devnull).open("w") as nowhere:  # decoders tell of every broken image
        os.dup2(nowhere.fileno(), 1)
        os.dup2(nowhere.fileno(), 2)
    with suppress(OSError):  # if memory runs out this goes, and not the server
        Path("/proc/self/oom_score_adj").write_text("1000")
    with suppress(ImageError):
        open_image(b"")  # so that all decoders are loaded
    with suppress(OSError), connection, connection.makefile("rb") as file:
        connection.sendall(_GOOD)
        while head := file.read(_LENGTH.size):
            function, arguments = pickle.loads(file.read(*_LENGTH.unpack(head)))  # noqa: S301 (ours)
            answer = _answer(function, arguments)
            connection.sendall(_LENGTH.pack(len(answer)) + answer)


def _answer(function: Callable[..., bytes], arguments: tuple[Any, ...]) -> bytes:
    try:
        return _GOOD + function(*arguments)
    except MemoryError:
        return _BAD + b"the image takes too much memory to decode; scale it down"
    except Exception as error:  # whatever Pillow runs into
        return _BAD + str(error).encode(errors="replace")


def _broken() -> Problem:
    return Problem("bad_image", "the image breaks its decoder; save it anew")


def _pixels(image: bytes, preprocess: Preprocess, max_pixels: int) -> bytes:
    return preprocess.pixels(open_image(image, max_pixels, preprocess.resize)).tobytes()


def _thumbnail(path: str, size: int, max_pixels: int) -> bytes:
    try:  # read here, so that no error names its place on the disk
        content = Path(path).read_bytes()
    except OSError as error:
        raise ImageError(f"the picture cannot be read ({error.strerror})") from None
    image = open_image(content, max_pixels, size)
    image.thumbnail((size, size))
    file = BytesIO()
    image.save(file, "JPEG", quality=85)
    return file.getvalue()
