"""What all routes use: the parts of the server, and embedding one image."""

import asyncio
import time
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote

from fastapi import Request
from starlette.requests import ClientDisconnect

from couce.server.admission import Admission
from couce.server.auth import Auth
from couce.server.decoding import Decoder
from couce.server.image_batcher import Row
from couce.server.item_images import ItemImages
from couce.server.jobs.queue import Jobs
from couce.server.prometheus import Prometheus
from couce.server.serving import LiveServing, Serving
from couce.server.settings import ServerSettings

_T = TypeVar("_T")

MAX_K = 1000  # most hits of a search

# The error codes of requests that only read.
READING = ("unauthorized", "forbidden", "rate_limited", "unavailable")


class Embedding(NamedTuple):
    row: Row
    decoded: float  # seconds of decoding, with the wait for a decoder
    embedded: float  # seconds of embedding, with the wait for a batch


@dataclass
class Service:
    """The parts of a running server."""

    settings: ServerSettings
    prometheus: Prometheus
    live: LiveServing
    decoder: Decoder
    admission: Admission
    auth: Auth
    jobs: Jobs
    item_images: ItemImages

    async def embed(self, serving: Serving, image: bytes) -> Embedding:
        with self.admission.image():
            began = time.perf_counter()
            with serving.image_batcher.coming():
                decoded = await self.decoder.pixels(image, serving.embedder.preprocess)
            there = time.perf_counter()
            row, waited, ran = await serving.image_batcher.embed(decoded.pixels)
        stages = self.prometheus.stages
        stages.labels("decode").observe(decoded.seconds)
        stages.labels("wait").observe(waited)
        stages.labels("model").observe(ran)
        return Embedding(row, there - began, time.perf_counter() - there)


def service_of(request: Request) -> Service:
    return request.app.state.service


async def while_connected(request: Request, work: Coroutine[Any, Any, _T]) -> _T:
    """The result of ``work``, which is cancelled if the client closes the connection."""
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


def image_address(id: str) -> str:
    """The address of an item's thumbnail."""
    return f"/items/{quote(id, safe='')}/image"
