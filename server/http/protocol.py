"""Limits that uvicorn's HTTP parser lacks: on the size and the time of all but the body."""

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

# Most bytes in a row that are not part of a body: an address with its headers, or the bytes
# between the chunks of a body.
_BYTES = 65_536
_SECONDS = 30.0  # for the whole head of a request


class Protocol(HttpToolsProtocol):
    """Ends a connection whose request has too long a head, or a head that does not arrive in time.

    The middleware limits bodies. If a request is answered before its whole body has arrived, nobody
    reads the rest of the body. Then the time limit holds for this rest.
    """

    _silent = 0  # bytes that arrived since the last part of a body
    _timer: asyncio.TimerHandle | None = None
    _within = False  # whether a request has begun and is not yet complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        self._wait_no_more()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._silent += len(data)
        super().data_received(data)
        if self._silent > _BYTES and not self.transport.is_closing():
            self.send_400_response("The head of the request is too long.")

    def on_message_begin(self) -> None:
        self._within = True
        self._wait()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._wait_no_more()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._silent = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._silent, self._within = 0, False
        self._wait_no_more()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._within:  # answered before all of it arrived; nobody reads the rest
            self._wait()

    def _wait(self) -> None:
        self._wait_no_more()
        self._timer = self.loop.call_later(_SECONDS, self._late)

    def _wait_no_more(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _late(self) -> Any:
        if not self.transport.is_closing():
            self.transport.close()
