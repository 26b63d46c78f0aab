"""The counters and timings that Prometheus reads at /metrics."""

import os

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
)
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

CONTENT_TYPE = CONTENT_TYPE_LATEST


class Prometheus:
    """The measurements of one process.

    If the server has several processes, prometheus_client adds them up through files.
    """

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.requests = Counter(
            "couce_requests",
            "Requests by route and status.",
            ["route", "status"],
            registry=registry,
        )
        self.seconds = Histogram(
            "couce_request_seconds",
            "Seconds from the first byte of a request to its answer.",
            ["route"],
            buckets=_SECONDS,
            registry=registry,
        )
        self.stages = Histogram(
            "couce_stage_seconds",
            "Seconds of decoding, waiting for a batch, the model and the search.",
            ["stage"],
            buckets=_SECONDS,
            registry=registry,
        )
        self.batches = Histogram(
            "couce_batch_images",
            "Images in a batch of the model.",
            buckets=(1, 2, 4, 8, 16, 32, 64, 128),
            registry=registry,
        )
        self.rejections = Counter(
            "couce_rejections", "Refused requests by error code.", ["code"], registry=registry
        )
        self.queue = Gauge(
            "couce_queue_images",
            "Images that were accepted and are not yet embedded.",
            registry=registry,
            multiprocess_mode="livesum",
        )
        self.items = Gauge(
            "couce_index_items",
            "Items in the index.",
            registry=registry,
            multiprocess_mode="max",
        )

    def text(self) -> bytes:
        if "PROMETHEUS_MULTIPROC_DIR" not in os.environ:
            return generate_latest(self.registry)
        joined = CollectorRegistry()
        MultiProcessCollector(joined)
        return generate_latest(joined)

    def close(self) -> None:
        if "PROMETHEUS_MULTIPROC_DIR" in os.environ:
            mark_process_dead(os.getpid())
