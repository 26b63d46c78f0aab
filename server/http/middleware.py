"""What every request passes on its way in and out: request id, limits, safe headers, log and counters."""

import asyncio
import json
import logging
import re
import secrets
import time
from urllib.parse import SplitResult, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from couce.server.http.problems import Problem, as_problem, respond
from couce.server.prometheus import Prometheus
from couce.server.settings import ServerSettings

log = logging.getLogger("couce.server")

# The status in log and counters where the client left before it was answered.
LEFT = 499

_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_SLOWEST = 100_000  # bytes a second that a long request must bring
_SAFE = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
}


class RequestMiddleware:
    """An ASGI middleware around the whole application."""

    def __init__(self, app: ASGIApp, settings: ServerSettings, prometheus: Prometheus) -> None:
        self._app, self._settings, self._measures = app, settings, prometheus
        sites = {_host(origin).hostname for origin in settings.origin}
        self._names = {"localhost", "127.0.0.1", "::1", settings.host, *sites}
        self._held = 0  # bytes of bodies that requests under way have brought

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        given = headers.get("x-request-id", "")
        id = given if _ID.fullmatch(given) else secrets.token_hex(8)
        scope.setdefault("state", {})["id"] = id
        if scope["path"].startswith("/items/"):  # an id may contain a slash, and stays encoded
            scope["path"] = scope["raw_path"].decode("latin-1")
        body = _Body(self, receive, self._limit(scope["path"]))
        began, status = time.perf_counter(), 0

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                out = MutableHeaders(scope=message)
                out["X-Request-Id"] = id
                for name, value in _SAFE.items():
                    out.setdefault(name, value)
            await send(message)

        try:
            try:
                self._check(headers)
                body.check(headers)
                await self._app(scope, body.receive, sending)
            except Problem as problem:
                await respond(id, problem, scope["path"])(scope, receive, sending)
            except ClientDisconnect:
                status = status or LEFT
            except Exception as error:
                log.exception(json.dumps({"event": "failed", "id": id}))
                if not status:
                    await respond(id, as_problem(error), scope["path"])(scope, receive, sending)
        finally:
            self._held -= body.held
            self._tell(scope, id, status, time.perf_counter() - began, body.total)

    def _limit(self, path: str) -> int:
        large = path.rstrip("/") == "/evaluate"
        return self._settings.max_upload_bytes if large else self._settings.max_bytes

    def _check(self, headers: Headers) -> None:
        """No other page may speak through its visitor's browser to a server that trusts its own machine."""
        named = _host(f"//{headers.get('host', '')}").hostname
        if self._settings.local and named not in self._names:
            raise Problem(
                "forbidden",
                "this server answers to localhost only; --origin allows a site in front of it, --host others",
            )
        origin = headers.get("origin")
        if origin is None or origin in self._settings.origin:
            return
        if _host(origin).netloc != headers.get("host"):
            raise Problem(
                "forbidden",
                f"pages of {origin[:60]} may not call this server; --origin allows them",
            )

    def _tell(self, scope: Scope, id: str, status: int, seconds: float, size: int) -> None:
        route = getattr(scope.get("route"), "path", "none")
        self._measures.requests.labels(route, str(status)).inc()
        self._measures.seconds.labels(route).observe(seconds)
        if log.isEnabledFor(logging.INFO):
            line = {
                "time": round(time.time(), 3),
                "id": id,
                "method": scope["method"],
                "route": route,
                "status": status,
                "ms": round(1000 * seconds, 1),
                "bytes": size,
                "key": scope["state"].get("key"),
            }
            log.info(json.dumps(line))


def _host(address: str) -> SplitResult:
    try:
        return urlsplit(address)
    except ValueError:  # [, or what looks like a host and is none
        return urlsplit("")


class _Body:
    """A request's body: limited in size, in all requests' sizes together, and in time."""

    def __init__(self, middleware: RequestMiddleware, receive: Receive, limit: int) -> None:
        self._middleware, self._receive, self._limit = middleware, receive, limit
        self.total = self.held = 0
        self._ended = False
        self._began = asyncio.get_running_loop().time()

    def check(self, headers: Headers) -> None:
        """A body that says it is too large is refused before any of it is read."""
        length = headers.get("content-length", "")
        if length.isdecimal() and int(length) > self._limit:
            raise self._too_large()

    async def receive(self) -> Message:
        if self._ended:  # what comes now is that the client leaves
            return await self._receive()
        settings = self._middleware._settings
        allowed = self._began + settings.read_seconds + self.total / _SLOWEST
        try:
            async with asyncio.timeout_at(allowed):
                message = await self._receive()
        except TimeoutError:
            raise Problem("read_timeout", "the request arrives too slowly; try again") from None
        size = len(message.get("body", b""))
        self.total += size
        self._ended = not message.get("more_body", False)
        if self.total > self._limit:
            raise self._too_large()
        if self._limit == settings.max_bytes:  # larger ones go to the disk
            self.held += size
            self._middleware._held += size
            if self._middleware._held > settings.max_held_bytes:
                raise Problem(
                    "overloaded", "too many requests are being read", {"Retry-After": "1"}
                )
        return message

    def _too_large(self) -> Problem:
        return Problem(
            "too_large", f"a request has {self._limit} bytes at most; send a smaller image"
        )
