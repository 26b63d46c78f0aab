"""Calls to Milvus: its errors as sentences, and passing ones tried again."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import TypeVar

from couce.errors import CouceError, StorageError

_TRIES = 5

T = TypeVar("T")


class Calls:
    """``calls(work)`` does the work, again after a moment if it failed for a reason that may pass. All calls
    that the index makes can be made twice."""

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
                # The client has tried for as long as its timeout. A server that has answered before is
                # waited for a little longer, one that never has is said to be away at once.
                if attempt >= _TRIES or not self._answered:
                    raise
            time.sleep(0.1 * 2**attempt)
        raise AssertionError

    @contextmanager
    def speaking(self) -> Iterator[None]:
        """Milvus's errors as sentences."""
        from grpc import RpcError
        from pymilvus.exceptions import MilvusException

        try:
            yield
        except (MilvusException, RpcError) as error:
            text = str(getattr(error, "message", "") or error)
            reason = text.strip().splitlines()[0][:300] if text.strip() else type(error).__name__
            if _away(error, text):
                raise _AwayError(
                    f"Milvus at {self._uri} does not answer ({reason}); is it running, and is"
                    " the address right?"
                ) from error
            kind = _PassingError if _passing(text) else CouceError
            raise kind(f"Milvus at {self._uri} refused: {reason}") from error


class _AwayError(StorageError):
    """Nobody answers."""


class _PassingError(StorageError):
    """May be gone in a moment."""


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
