"""What happens to every request: request id, limits, safe headers, log and counters."""

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

# The status, in the log and the counters, of a request whose client left before the answer.
LEFT = 499

_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_SLOWEST = 100_000  # bytes a second; a long request must not arrive more slowly
# Headers of every answer to which its route gives no other value.
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
        # The host names that a server answers to if only its own machine can connect.
        self._names = {"localhost", "127.0.0.1", "::1", settings.host, *sites}
        self._held = 0  # bytes of all bodies that are in memory

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        given = headers.get("x-request-id", "")
        id = given if _ID.fullmatch(given) else secrets.token_hex(8)
        scope.setdefault("state", {})["id"] = id
        # The id of an item may contain a slash. So its address stays encoded here.
        if scope["path"].startswith("/items/"):
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
            self._record(scope, id, status, time.perf_counter() - began, body.total)

    def _limit(self, path: str) -> int:
        large = path.rstrip("/") == "/evaluate"
        return self._settings.max_upload_bytes if large else self._settings.max_bytes

    def _check(self, headers: Headers) -> None:
        """Refuses requests that pages of other sites make through a visitor's browser.

        A server that only its own machine can reach may trust every request that arrives. A
        browser on this machine must not let foreign pages use this trust.
        """
        named = _host(f"//{headers.get('host', '')}").hostname
        if self._settings.local and named not in self._names:
            raise Problem(
                "forbidden",
                "this server only answers requests to localhost; start it with --origin to allow a"
                " site in front of it, or with --host to allow other machines",
            )
        origin = headers.get("origin")
        if origin is None or origin in self._settings.origin:
            return
        if _host(origin).netloc != headers.get("host"):
            raise Problem(
                "forbidden",
                f"pages of {origin[:60]} may not call this server; start it with --origin to allow"
                " them",
            )

    def _record(self, scope: Scope, id: str, status: int, seconds: float, size: int) -> None:
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
    except ValueError:  # for example a single bracket
        return urlsplit("")


class _Body:
    """The body of a request.

    Its size, the time that it takes, and the size of all bodies together are limited.
    """

    def __init__(self, middleware: RequestMiddleware, receive: Receive, limit: int) -> None:
        self._middleware, self._receive, self._limit = middleware, receive, limit
        self.total = self.held = 0  # bytes that arrived, and those of them that are in memory
        self._ended = False
        self._began = asyncio.get_running_loop().time()

    def check(self, headers: Headers) -> None:
        """Refuses a body before any of it is read, if its declared length is too large."""
        length = headers.get("content-length", "")
        if length.isdecimal() and int(length) > self._limit:
            raise self._too_large()

    async def receive(self) -> Message:
        if self._ended:  # the next message says that the client has left
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
        # Bodies that have the larger limit go to the disk and are not counted here.
        if self._limit == settings.max_bytes:
            self.held += size
            self._middleware._held += size
            if self._middleware._held > settings.max_held_bytes:
                raise Problem(
                    "overloaded",
                    "too many requests are being received; try again in a moment",
                    {"Retry-After": "1"},
                )
        return message

    def _too_large(self) -> Problem:
        return Problem(
            "too_large", f"a request may have at most {self._limit} bytes; send a smaller file"
        )
