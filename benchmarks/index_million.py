"""Compares an index of a million vectors with exact search and with FAISS alone.

    python benchmarks/index_million.py [--vectors 1000000] [--dim 512] [--keep FOLDER]

The index has the structure that `auto` chooses. The vectors lie in clusters of about 50, like the
images of a class: each is a random centre plus noise of the same length. The queries come from the
same clusters but are not in the index. Three contestants run, each in its own process:

- exact: exact search in a flat FAISS index in memory
- faiss: FAISS alone on the FAISS file of the index, read into memory, with the tuned parameters
- ours: the index itself

With --keep, the index stays in the folder and is used again by the next run.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

CLUSTER = 50  # vectors of a cluster
NOISE = 1.0  # length of the noise, in lengths of a centre
QUERIES, K = 1000, 10
SINGLE = 200  # queries that are timed one by one
BLOCK = 10_000  # vectors that are added at once


def draw(count: int, dim: int, seed: int, vectors: int) -> NDArray[np.float32]:
    """Draws ``count`` vectors (count, dim) from the clusters of a set with ``vectors`` vectors."""
    shape = (max(1, vectors // CLUSTER), dim)
    centres = np.random.default_rng(0).standard_normal(shape, dtype=np.float32)
    rng = np.random.default_rng((1, seed))
    rows = centres[rng.integers(0, len(centres), count)]
    rows += NOISE * rng.standard_normal(rows.shape, dtype=np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def memory(field: str) -> int:
    """The value of a field in /proc/self/status, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise KeyError(field)


def make(folder: Path, vectors: int, dim: int) -> None:
    """Builds the index."""
    from couce.index import NewItem
    from couce.index.commands import measured_line
    from couce.index.local.index import LocalIndex

    start = time.perf_counter()
    with LocalIndex(folder / "index", "write", background=False) as index:
        for number, first in enumerate(range(0, vectors, BLOCK)):
            rows = draw(min(BLOCK, vectors - first), dim, number, vectors)
            index.add(
                NewItem(
                    row,
                    id=f"{n:09}",
                    label=str(n % 1000),
                    paths=(f"/gallery/{n % 1000}/{n:09}.jpg",),
                )
                for n, row in enumerate(rows, first)
            )
        print(f"added in {time.perf_counter() - start:.0f} s", flush=True)
        start = time.perf_counter()
        manifest = index.compact()
        print(f"compacted in {time.perf_counter() - start:.0f} s", flush=True)
    print(measured_line(manifest.structure), flush=True)


def singles(search: Any, queries: NDArray[np.float32]) -> float:
    """The median time of a single query, in milliseconds."""
    times = []
    for query in queries[:, None]:
        start = time.perf_counter()
        search(query)
        times.append(time.perf_counter() - start)
    return 1000 * statistics.median(times)


def run_exact(folder: Path, queries: NDArray[np.float32]) -> dict[str, Any]:
    import faiss

    from couce.index.local.index import LocalIndex

    flat = faiss.IndexFlatIP(queries.shape[1])
    ids: list[str] = []
    with LocalIndex(folder / "index") as index:
        for block in index.vectors():
            flat.add(block.vectors)
            ids += block.ids
    _, found = flat.search(queries, K)
    np.save(folder / "truth.npy", np.array(ids)[found])
    return {"ms": singles(lambda query: flat.search(query, K), queries[:30])}


def run_faiss(folder: Path, queries: NDArray[np.float32]) -> dict[str, Any]:
    import faiss

    from couce.index.local.manifest import Manifest
    from couce.index.local.structures import innermost, parameters

    before = memory("VmRSS")
    manifest = Manifest.read(folder / "index")
    assert manifest.file is not None  # noqa: S101
    index = faiss.read_index(str(folder / "index" / manifest.file.name))
    inner = innermost(index)
    chosen = parameters(inner, manifest.structure.effort)
    index.search(queries, K, params=chosen)
    if inner.kind == "ivf":
        inner.index.parallel_mode = 1  # our index sets this for a single query, too
    milliseconds = singles(lambda query: index.search(query, K, params=chosen), queries[:SINGLE])
    return {"ms": milliseconds, "bytes": memory("VmRSS") - before}


def run_ours(folder: Path, queries: NDArray[np.float32]) -> dict[str, Any]:
    import faiss  # noqa: F401

    import couce.index.local.index  # noqa: F401
    from couce.index import open_index

    before = memory("VmRSS")
    start = time.perf_counter()
    with open_index(folder / "index") as index:
        index.search(queries[:1], K)
        seconds = time.perf_counter() - start
        hits = index.search(queries, K)
        main = index._memory._moment.main.index  # type: ignore[attr-defined]
        found = np.array([[hit.id for hit in row] for row in hits])
        truth = np.load(folder / "truth.npy")
        recall = np.mean([len(set(a) & set(b)) / K for a, b in zip(found, truth, strict=True)])
        # The time that our layer adds to a single query. Both run in turns on the same mapped file.
        moment = index._memory._moment  # type: ignore[attr-defined]
        from couce.index.local.structures import innermost, parameters

        chosen = parameters(innermost(main), moment.main.structure.effort)
        bare: list[float] = []
        whole: list[float] = []
        for query in queries[:SINGLE, None]:
            for times, search in (
                (bare, lambda q: main.search(q, K, params=chosen)),
                (whole, lambda q: index.search(q, K)),
            ):
                began = time.perf_counter()
                search(query)
                times.append(time.perf_counter() - began)
        filtered = singles(lambda q: index.search(q, K, filter={"label": "7"}), queries[:30])
        return {
            "ms": 1000 * statistics.median(whole),
            "bare_ms": 1000 * statistics.median(bare),
            "recall": float(recall),
            "open": seconds,
            "bytes": memory("VmRSS") - before,
            "filtered_ms": filtered,
        }


CONTESTANTS = {"exact": run_exact, "faiss": run_faiss, "ours": run_ours}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--vectors", type=int, default=1_000_000, help="number of vectors (default: 1000000)"
    )
    parser.add_argument(
        "--dim", type=int, default=512, help="dimension of the vectors (default: 512)"
    )
    parser.add_argument(
        "--keep", type=Path, help="folder where the index is kept, and used again if it exists"
    )
    parser.add_argument("--run", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.run:
        queries = draw(QUERIES, arguments.dim, 10**6, arguments.vectors)
        print(json.dumps(CONTESTANTS[arguments.run](arguments.keep, queries)))
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.keep or Path(temporary)
        if not (folder / "index" / "manifest.json").exists():
            make(folder, arguments.vectors, arguments.dim)
        results: dict[str, dict[str, Any]] = {}
        for name in CONTESTANTS:
            print(f"{name} ...", file=sys.stderr, flush=True)
            command = [sys.executable, __file__, "--run", name, "--keep", str(folder)]
            command += ["--dim", str(arguments.dim), "--vectors", str(arguments.vectors)]
            output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            results[name] = json.loads(output.splitlines()[-1])
    exact, bare, ours = (results[name] for name in CONTESTANTS)
    bare_size, our_size = bare["bytes"] / 1e9, ours["bytes"] / 1e9
    print(f"{arguments.vectors} x {arguments.dim}, {QUERIES} queries not in the index")
    print(f"exact search, FAISS flat      {exact['ms']:9.2f} ms per query")
    print(f"the file in FAISS alone       {bare['ms']:9.2f} ms per query, {bare_size:.2f} GB")
    print(f"ours                          {ours['ms']:9.2f} ms per query, {our_size:.2f} GB")
    print(f"ours, one label of 1000       {ours['filtered_ms']:9.2f} ms per query")
    print(f"recall@10                     {ours['recall']:9.4f}     (bound: at least 0.99)")
    print(f"latency / exact               {ours['ms'] / exact['ms']:9.3f}     (bound: at most 0.2)")
    over = ours["ms"] - ours["bare_ms"]
    share = over / ours["bare_ms"]
    print(
        f"our layer over FAISS, in turns {over:8.3f} ms = {share:.1%} of {ours['bare_ms']:.2f} ms"
        "     (bound: 0.2 ms or 10 %)"
    )
    print(f"memory / FAISS's              {our_size / bare_size:9.3f}     (bound: at most 1.2)")
    print(f"open and first search         {ours['open']:9.3f} s   (bound: at most 2)")


if __name__ == "__main__":
    main()
