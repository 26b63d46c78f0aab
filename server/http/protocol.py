"""What uvicorn's HTTP parser leaves open: how much may come that is no body, and how long a head may take."""

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_BYTES = 65_536  # of an address and headers, and of what follows a body in chunks
_SECONDS = 30.0


class Protocol(HttpToolsProtocol):
    """A connection ends if its request has too much of a head, or no whole one in time.

    A body is the gate's business, as long as somebody reads it.
    """

    _silent = 0  # bytes in a row that were no body
    _timer: asyncio.TimerHandle | None = None
    _within = False  # a request

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
        if self._within:  # refused before all of it was here: the rest is read by nobody
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
