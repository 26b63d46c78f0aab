"""Embeds files on a Ray cluster with Ray Data, where each worker has its own model.

The workers read the files themselves, so the gallery must be mounted at the same path on all
machines. If RAY_ADDRESS is set, that cluster is used. Otherwise Ray is started on this machine.
"""

import logging
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from couce.embedder import Embedder
from couce.errors import CouceError
from couce.index.building.embedding import EmbedFiles, Outcome, in_process
from couce.index.building.scan import Entry
from couce.machine.cores import usable_cores
from couce.preprocess import Preprocess

_BATCH = 128  # files that a worker gets at a time


class Worker:
    """An actor of Ray. It loads the model once and then embeds batches of files."""

    def __init__(
        self,
        model: bytes,
        provider: str,
        preprocess: Preprocess | None,
        threads: int,
        known: Mapping[str, str | None],
    ) -> None:
        with tempfile.NamedTemporaryFile(suffix=".onnx") as file:
            file.write(model)
            file.flush()
            embedder = Embedder(
                file.name, provider=provider, preprocess=preprocess, threads=threads
            )
        self._dim = embedder.dim
        self._known = known
        self._embed_files = in_process(lambda: embedder)

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        entries = [
            Entry(bytes(path).decode("utf-8", "surrogateescape"), -1, -1, id=id or None)
            for path, id in zip(batch["path"], batch["id"], strict=True)
        ]
        outcomes = list(self._embed_files(entries, self._known))
        nothing = np.zeros(self._dim, np.float32)
        return {
            "place": batch["place"],
            "size": np.array([o.entry.size for o in outcomes]),
            "stamp": np.array([o.entry.stamp for o in outcomes]),
            "sha256": np.array([o.sha256 for o in outcomes], dtype=object),
            "item": np.array([o.id for o in outcomes], dtype=object),
            "fault": np.array([o.fault or "" for o in outcomes], dtype=object),
            "embedded": np.array([o.vector is not None for o in outcomes]),
            "vector": np.stack([nothing if o.vector is None else o.vector for o in outcomes]),
        }


def on_ray(
    model: Path,
    provider: str = "auto",
    preprocess: Preprocess | None = None,
    workers: int | None = None,
) -> EmbedFiles:
    """Embeds on a Ray cluster. By default there are as many workers as the cluster has cores."""
    ray = _ray()

    def embed_files(entries: Sequence[Entry], known: Mapping[str, str | None]) -> Iterator[Outcome]:
        if not entries:
            return
        started = not ray.is_initialized()
        if started:
            ray.init(**_cluster(), log_to_driver=False, logging_level=logging.ERROR)
        try:
            ray.data.DataContext.get_current().enable_progress_bars = False
            count = workers or max(1, int(ray.cluster_resources().get("CPU", 1)))
            rows = [
                {
                    "place": place,
                    "path": entry.path.encode("utf-8", "surrogateescape"),
                    "id": entry.id or "",
                }
                for place, entry in enumerate(entries)
            ]
            data = ray.data.from_items(rows, override_num_blocks=max(1, len(rows) // _BATCH))
            outcomes = data.map_batches(
                Worker,
                fn_constructor_args=(model.read_bytes(), provider, preprocess, 1, dict(known)),
                batch_size=_BATCH,
                concurrency=min(count, max(1, len(rows) // _BATCH)),
                num_cpus=1,
            )
            yield from _once(_outcomes(outcomes, entries))
        finally:
            if started:
                ray.shutdown()

    return embed_files


def _ray() -> Any:
    # Without this, Ray sends usage statistics to its makers.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import_module("ray.data")
        return import_module("ray")
    except ImportError:
        raise CouceError("ray is not installed; run `pip install 'couce[ray]'`") from None


def _cluster() -> dict[str, Any]:
    """The options of ``ray.init``: none if RAY_ADDRESS names a cluster, else those to start Ray."""
    if os.environ.get("RAY_ADDRESS"):
        return {}
    # Without "local", Ray would join a cluster that it finds on this machine and refuse num_cpus.
    return {
        "address": "local",
        "num_cpus": usable_cores(),
        "include_dashboard": False,
        "_node_ip_address": "127.0.0.1",
    }


def _outcomes(data: Any, entries: Sequence[Entry]) -> Iterator[Outcome]:
    for batch in data.iter_batches(batch_size=_BATCH):
        for row in range(len(batch["place"])):
            given = entries[int(batch["place"][row])]
            entry = Entry(
                given.path,
                int(batch["size"][row]),
                int(batch["stamp"][row]),
                given.label,
                given.id,
                given.metadata,
            )
            vector = (
                np.asarray(batch["vector"][row], np.float32) if batch["embedded"][row] else None
            )
            yield Outcome(
                entry,
                str(batch["item"][row]),
                str(batch["sha256"][row]),
                vector,
                str(batch["fault"][row]) or None,
            )


def _once(outcomes: Iterator[Outcome]) -> Iterator[Outcome]:
    """Keeps the first vector for the same bytes, since two workers may have embedded them."""
    seen: dict[str, str] = {}
    for outcome in outcomes:
        if outcome.vector is None:
            yield outcome
        elif outcome.id not in seen:
            seen[outcome.id] = outcome.sha256
            yield outcome
        elif seen[outcome.id] == outcome.sha256:
            yield outcome._replace(vector=None)
        else:
            fault = f"another file has the id {outcome.id!r}, too; give each its own id"
            yield outcome._replace(vector=None, fault=fault)
