"""Limits how many images are in the server. Further requests are told when to try again."""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager

from couce.server.http.problems import Problem
from couce.server.prometheus import Prometheus

_DECAY = 1.0  # seconds in which the count of refused requests falls to 1/e


class Admission:
    """Counts images from the moment they are accepted until they are embedded."""

    def __init__(self, limit: int, prometheus: Prometheus) -> None:
        self._limit, self._measures = limit, prometheus
        self._inside = 0
        self._interval = 0.1  # seconds between two images that leave, a running mean
        self._last_left = time.monotonic()
        # How many requests were refused lately. They will come back, too.
        self._refused = 0.0
        self._last_refused = self._last_left

    def check(self) -> None:
        """Refuses a request while there is no room.

        It is called before the body of a request is read, and again after.
        """
        if self._inside < self._limit:
            return
        self._measures.rejections.labels("overloaded").inc()
        now = time.monotonic()
        self._refused = 1 + self._refused * math.exp((self._last_refused - now) / _DECAY)
        self._last_refused = now
        seconds = math.ceil((self._inside + self._refused) * self._interval)
        raise Problem(
            "overloaded",
            f"{self._inside} images are waiting; try again in a moment",
            {"Retry-After": str(max(1, min(60, seconds)))},
        )

    @contextmanager
    def image(self) -> Iterator[None]:
        """Counts one image for as long as the block runs."""
        self._inside += 1
        self._measures.queue.inc()
        try:
            yield
        finally:
            self._inside -= 1
            self._measures.queue.dec()
            now = time.monotonic()
            self._interval += 0.05 * (min(1.0, now - self._last_left) - self._interval)
            self._last_left = now
