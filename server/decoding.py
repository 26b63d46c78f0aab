"""Decodes images in processes of their own.

Libraries written in C parse what strangers send. A process of its own can be ended when an image
takes too long, and its memory is limited. If it dies, one request fails, but not the server. If an
image takes control of a process, all that the process can send back is bytes. The server reads
them as pixels, as a JPEG or as an error message, and never unpickles them.

The event loop talks to each process over a socket, without a thread in between. This costs less
than half of what a general process pool costs.
"""

import asyncio
import multiprocessing
import os
import pickle
import resource
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import BytesIO
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from couce.machine.allocator import keep_freed_memory
from couce.preprocess import ImageError, Preprocess, open_image
from couce.server.http.problems import Problem

_MEMORY = 4 * 2**30  # most bytes of address space of a process
_ANSWER = 64 * 2**20  # most bytes of an answer; the pixels of the largest crop are fewer
# The first byte of an answer. _GOOD alone says that a process has started.
_GOOD, _BAD = b"\0", b"\1"
_KEPT = 128 * 2**20  # most bytes of freed memory that a process keeps
_LENGTH = struct.Struct("<Q")  # the length in front of every message

_context = multiprocessing.get_context("forkserver")


class Decoded(NamedTuple):
    pixels: NDArray[np.uint8]  # (crop, crop, 3)
    seconds: float


class Decoder:
    """Decodes in ``workers`` processes.

    An image may have up to ``max_pixels`` and take up to ``seconds``.
    """

    def __init__(self, workers: int, seconds: float, max_pixels: int) -> None:
        self._seconds, self._max_pixels = seconds, max_pixels
        # The fork server imports this module once, so that new processes start at once.
        _context.set_forkserver_preload([__name__])
        self._all = [_Process() for _ in range(workers)]
        self._free: asyncio.LifoQueue[_Process] = asyncio.LifoQueue()
        for process in self._all:
            self._free.put_nowait(process)

    async def pixels(self, image: bytes, preprocess: Preprocess) -> Decoded:
        """The pixels of an image, as the model takes them."""
        found, seconds = await self._run(_pixels, image, preprocess, self._max_pixels)
        crop = preprocess.crop
        if len(found) != crop * crop * 3:
            raise _broken()
        return Decoded(np.frombuffer(found, np.uint8).reshape(crop, crop, 3), seconds)

    async def thumbnail(self, path: str, size: int) -> bytes:
        """The image of a file as a JPEG whose longer side has at most ``size`` pixels."""
        found, _ = await self._run(_thumbnail, path, size, self._max_pixels)
        return found

    async def _run(self, function: Callable[..., bytes], *arguments: Any) -> tuple[bytes, float]:
        process = await self._free.get()
        began = time.perf_counter()
        # Shielded from cancellation: a process that is left in the middle would need a replacement.
        asking = asyncio.ensure_future(self._ask(process, pickle.dumps((function, arguments))))
        answer = await asyncio.shield(asking)
        if answer[:1] != _GOOD:
            raise Problem("bad_image", answer[1:].decode(errors="replace"))
        return answer[1:], time.perf_counter() - began

    async def _ask(self, process: "_Process", task: bytes) -> bytes:
        try:
            # A process may also be killed from outside. So the image gets a second try.
            for _ in range(2):
                try:
                    await process.ready()
                    async with asyncio.timeout(self._seconds):
                        return await process.ask(task)
                except TimeoutError:
                    await process.restart()
                    raise Problem(
                        "decode_timeout",
                        f"the image takes more than {self._seconds:g} s to decode; save it again,"
                        " or make it smaller",
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
    """A process that decodes, and the socket to it."""

    def __init__(self) -> None:
        self._start()

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        self._process = _context.Process(target=_work, args=(theirs,), daemon=True)
        with _without_main():
            self._process.start()
        theirs.close()
        self._socket = ours
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ready(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Waits until the process has started, and returns its streams.

        The time limit of an image does not include this wait.
        """
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
            self._streams[1].transport.abort()  # closes the socket
        else:
            self._socket.close()
        self._process.kill()
        await asyncio.to_thread(self._process.join)


@contextmanager
def _without_main() -> Iterator[None]:
    """Keeps a new process from importing the user's script again, which would run it once more.

    A decoder needs nothing from that script. If the script trains a model before it calls
    :func:`create_app`, each decoder would train it again.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _work(connection: socket.socket) -> None:
    """Decodes one image after another until the server closes the socket."""
    # Ctrl+C reaches this process, too, but only the server handles it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # Without this, a third of the time is spent on taking the memory anew for each image.
    keep_freed_memory(_KEPT)
    # Some decoders print a message about every broken image.
    with Path(os.devnull).open("w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        os.dup2(nowhere.fileno(), 2)
    # If memory runs out, the kernel should end this process and not the server.
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    # This loads all decoders before the first image arrives.
    with suppress(ImageError):
        open_image(b"")
    with suppress(OSError), connection, connection.makefile("rb") as file:
        connection.sendall(_GOOD)
        while head := file.read(_LENGTH.size):
            task = file.read(*_LENGTH.unpack(head))
            function, arguments = pickle.loads(task)  # noqa: S301 (the server made it)
            answer = _answer(function, arguments)
            connection.sendall(_LENGTH.pack(len(answer)) + answer)


def _answer(function: Callable[..., bytes], arguments: tuple[Any, ...]) -> bytes:
    try:
        return _GOOD + function(*arguments)
    except MemoryError:
        return _BAD + b"the image takes too much memory to decode; make it smaller"
    except Exception as error:  # Pillow raises errors of many types
        return _BAD + str(error).encode(errors="replace")


def _broken() -> Problem:
    return Problem("bad_image", "the image makes its decoder crash; save it again")


def _pixels(image: bytes, preprocess: Preprocess, max_pixels: int) -> bytes:
    return preprocess.pixels(open_image(image, max_pixels, preprocess.resize)).tobytes()


def _thumbnail(path: str, size: int, max_pixels: int) -> bytes:
    # The file is read here, so that no error message contains its path.
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise ImageError(f"the image cannot be read ({error.strerror})") from None
    image = open_image(content, max_pixels, size)
    image.thumbnail((size, size))
    file = BytesIO()
    image.save(file, "JPEG", quality=85)
    return file.getvalue()
