"""A bounded number of images on their way through the model; the rest is told when to come back."""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager

from couce.server.http.problems import Problem
from couce.server.prometheus import Prometheus

_LATE = 1.0  # seconds


class Admission:
    """Counts images from the moment they are taken until they are embedded."""

    def __init__(self, limit: int, prometheus: Prometheus) -> None:
        self._limit, self._measures = limit, prometheus
        self._inside = 0
        self._interval = 0.1  # seconds between two images that leave, a running mean
        self._left = time.monotonic()
        self._refused = 0.0  # of late: they will be back too
        self._when = self._left

    def check(self) -> None:
        """Refuses a request while there is no room: before its body is read, and again after."""
        if self._inside < self._limit:
            return
        self._measures.rejections.labels("overloaded").inc()
        now = time.monotonic()
        self._refused = 1 + self._refused * math.exp((self._when - now) / _LATE)
        self._when = now
        seconds = math.ceil((self._inside + self._refused) * self._interval)
        raise Problem(
            "overloaded",
            f"{self._inside} images are waiting; try again in a moment",
            {"Retry-After": str(max(1, min(60, seconds)))},
        )

    @contextmanager
    def image(self) -> Iterator[None]:
        self._inside += 1
        self._measures.queue.inc()
        try:
            yield
        finally:
            self._inside -= 1
            self._measures.queue.dec()
            now = time.monotonic()
            self._interval += 0.05 * (min(1.0, now - self._left) - self._interval)
            self._left = now
