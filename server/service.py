"""What the routes share, and an image's way from bytes to its embedding."""

import asyncio
import math
import time
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple, TypeVar

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from starlette.requests import ClientDisconnect

from couce.server.admission import Admission
from couce.server.batcher import Row
from couce.server.decoding import Decoder
from couce.server.engine import Engine, Engines
from couce.server.jobs import Jobs
from couce.server.keys import Key, Keys, Rates
from couce.server.measures import Measures
from couce.server.pictures import Pictures
from couce.server.problems import Problem
from couce.server.settings import ServerSettings

_T = TypeVar("_T")


class Embedding(NamedTuple):
    row: Row
    decoded: float  # seconds
    embedded: float  # with waiting for a batch


@dataclass
class Service:
    settings: ServerSettings
    measures: Measures
    engines: Engines
    decoder: Decoder
    admission: Admission
    keys: Keys
    rates: Rates
    jobs: Jobs
    pictures: Pictures

    async def embed(self, engine: Engine, image: bytes) -> Embedding:
        with self.admission.image():
            began = time.perf_counter()
            with engine.batcher.coming():
                decoded = await self.decoder.pixels(image, engine.embedder.preprocess)
            there = time.perf_counter()
            row, waited, ran = await engine.batcher.embed(decoded.pixels)
        stages = self.measures.stages
        stages.labels("decode").observe(decoded.seconds)
        stages.labels("wait").observe(waited)
        stages.labels("model").observe(ran)
        return Embedding(row, there - began, time.perf_counter() - there)

    @property
    def keys_wanted(self) -> bool:
        wanted = self.settings.authentication
        if wanted == "auto":
            # One that was revoked leaves the door closed.
            return not self.settings.local or self.keys.path.exists()
        return wanted == "required"

    def key_of(self, token: str | None) -> Key | None:
        """The key that a request brings; None where none is wanted. Any other is refused."""
        if not self.keys_wanted:
            return None
        if not token:
            raise Problem("unauthorized", "this server wants a key, as Authorization: Bearer KEY")
        key = self.keys.find(token)
        if key is None:
            raise Problem("unauthorized", "this key is unknown")
        seconds = self.rates.wait(key, self.settings.workers, time.monotonic())
        if seconds:
            self.measures.rejections.labels("rate_limited").inc()
            raise Problem(
                "rate_limited",
                f"the key {key.name!r} may send {key.rate:g} requests a second",
                {"Retry-After": str(math.ceil(seconds))},
            )
        return key


def service_of(request: Request) -> Service:
    return request.app.state.service


_bearer = HTTPBearer(
    auto_error=False, description="From `couce key new`; wanted unless on loopback."
)
_Token = Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]


async def may_read(request: Request, token: _Token) -> Key | None:
    key = service_of(request).key_of(token.credentials if token else None)
    request.state.key = key.name if key else None
    return key


async def may_administer(request: Request, token: _Token) -> None:
    key = await may_read(request, token)
    if key is not None and key.role != "admin":
        raise Problem("forbidden", f"the key {key.name!r} may read only; this takes an admin's")


async def may_change(request: Request, token: _Token) -> None:
    await may_administer(request, token)
    if service_of(request).settings.read_only:
        raise Problem("forbidden", "this server was started with --read-only")


async def while_connected(request: Request, work: Coroutine[Any, Any, _T]) -> _T:
    """What ``work`` gives, unless the client leaves, which ends it."""
    task = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_left(request))
    try:
        await asyncio.wait((task, leaving), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientDisconnect
    finally:
        leaving.cancel()
        task.cancel()


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
