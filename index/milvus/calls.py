"""Calls to Milvus: turns its errors into sentences, and repeats calls after temporary errors."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import TypeVar

from couce.errors import CouceError, StorageError

_TRIES = 5

T = TypeVar("T")


class Calls:
    """``calls(work)`` runs ``work``, and runs it again after a pause if the error is temporary.

    This is safe, because every call of the index has the same effect when it is made twice.
    """

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._answered = False

    def __call__(self, work: Callable[[], T]) -> T:
        for attempt in count(1):
            try:
                with self.speaking():
                    found = work()
                self._answered = True
                return found
            except _PassingError:
                if attempt >= _TRIES:
                    raise
            except _AwayError:
                # The client has already tried until its timeout. We try again only if this server
                # has answered before; otherwise the address is probably wrong.
                if attempt >= _TRIES or not self._answered:
                    raise
            time.sleep(0.1 * 2**attempt)
        raise AssertionError

    @contextmanager
    def speaking(self) -> Iterator[None]:
        """Turns the errors of Milvus into a CouceError of one sentence."""
        from grpc import RpcError
        from pymilvus.exceptions import MilvusException

        try:
            yield
        except (MilvusException, RpcError) as error:
            text = str(getattr(error, "message", "") or error)
            reason = text.strip().splitlines()[0][:300] if text.strip() else type(error).__name__
            if _away(error, text):
                raise _AwayError(
                    f"Milvus at {self._uri} does not answer ({reason}); check that it is running"
                    " and that the address is right"
                ) from error
            kind = _PassingError if _passing(text) else CouceError
            raise kind(f"Milvus at {self._uri} refused the call: {reason}") from error


class _AwayError(StorageError):
    """The server does not answer."""


class _PassingError(StorageError):
    """A temporary error of the server."""


def _away(error: Exception, text: str) -> bool:
    signs = (
        "fail connecting",
        "failed to connect",
        "unavailable",
        "deadline",
        "retry run out",
        "connection",
    )
    return type(error).__name__ == "MilvusUnavailableException" or any(
        sign in text.lower() for sign in signs
    )


def _passing(text: str) -> bool:
    signs = (
        "rate limit",
        "rate type",
        "not ready",
        "no available",
        "not loaded",
        "channel not found",
    )
    return any(sign in text.lower() for sign in signs)
