"""Measures the metrics at the size of Stanford Online Products' test half, with their bound.

    python benchmarks/metrics_sop.py [--rounds 2] [--images 60502]

The bound is the exact k-NN search of faiss. It is compared with couce.metrics (all but NMI) and
with the AccuracyCalculator of pytorch-metric-learning. For each of the three, this prints the
seconds, the ratio to faiss, and the peak memory beyond the embeddings. Every measurement runs in a
separate process, and the three take turns.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

IMAGES, DIM, CLASSES, SMALLEST, LARGEST = 60_502, 512, 11_316, 2, 12


def make_set(images: int) -> tuple[NDArray[np.float32], NDArray[np.intp]]:
    """Embeddings (N, d) of unit length around class centres, and their labels (N,).

    As in the real set, each class has 2 to 12 images.
    """
    rng = np.random.default_rng(0)
    classes = images * CLASSES // IMAGES
    room = LARGEST - SMALLEST
    taken = rng.permutation(classes * room)[: images - SMALLEST * classes] // room
    labels = np.repeat(np.arange(classes), SMALLEST + np.bincount(taken, minlength=classes))
    x = rng.standard_normal((classes, DIM), dtype=np.float32)[labels]
    x += 3 * rng.standard_normal(x.shape, dtype=np.float32)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    return x, labels


def run_faiss(x: NDArray[np.float32], labels: NDArray[np.intp]) -> dict[str, float]:
    import faiss

    faiss.knn(x, x, int(np.bincount(labels).max()))
    return {}


def run_couce(x: NDArray[np.float32], labels: NDArray[np.intp]) -> dict[str, float]:
    from couce.metrics import retrieval_metrics

    return retrieval_metrics(x, labels, ks=(1,), nmi=False)


def run_pml(x: NDArray[np.float32], labels: NDArray[np.intp]) -> dict[str, float]:
    import torch
    from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator

    names = {
        "precision_at_1": "R@1",
        "r_precision": "RP",
        "mean_average_precision_at_r": "MAP@R",
    }
    calculator = AccuracyCalculator(
        include=tuple(names), k="max_bin_count", device=torch.device("cpu")
    )
    result = calculator.get_accuracy(torch.from_numpy(x), torch.from_numpy(labels))
    return {names[key]: value for key, value in result.items()}


CONTESTANTS: dict[str, Callable[..., dict[str, float]]] = {
    "faiss k-NN alone": run_faiss,
    "couce.metrics": run_couce,
    "pytorch-metric-learning": run_pml,
}


def memory(field: str) -> int:
    """The value of a field of /proc/self/status, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise KeyError(field)


def measure(name: str, folder: Path) -> None:
    """Loads the set, runs one contestant, and prints its time and memory. Has its own process."""
    x, labels = np.load(folder / "x.npy"), np.load(folder / "labels.npy")
    run = CONTESTANTS[name]
    run(x[:500], labels[:500])  # imports and starts threads before the measurement
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak memory
    before, start = memory("VmRSS"), time.perf_counter()
    metrics = run(x, labels)
    seconds = time.perf_counter() - start
    print(json.dumps({"s": seconds, "bytes": memory("VmHWM") - before, "metrics": metrics}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=2, help="measurements of each contestant")
    parser.add_argument("--images", type=int, default=IMAGES, help="size of the set")
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        return measure(arguments.measure[0], Path(arguments.measure[1]))

    results: dict[str, list[dict[str, Any]]] = {name: [] for name in CONTESTANTS}
    with tempfile.TemporaryDirectory() as folder:
        x, labels = make_set(arguments.images)
        np.save(Path(folder) / "x.npy", x)
        np.save(Path(folder) / "labels.npy", labels)
        print(f"{len(x)} x {x.shape[1]}, {labels.max() + 1} classes, {x.nbytes / 1e9:.2f} GB")
        for turn in range(arguments.rounds):
            for name in CONTESTANTS:
                print(f"round {turn + 1}: {name} ...", file=sys.stderr)
                command = [sys.executable, __file__, "--measure", name, folder]
                output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
                results[name].append(json.loads(output))

    bound = statistics.median(run["s"] for run in results["faiss k-NN alone"])
    print(f"{'':26}{'seconds':>9}{'ratio':>7}{'memory beyond':>15}  metrics")
    for name, runs in results.items():
        seconds = statistics.median(run["s"] for run in runs)
        gigabytes = max(run["bytes"] for run in runs) / 1e9
        metrics = "  ".join(f"{k} {v:.6f}" for k, v in runs[0]["metrics"].items())
        print(f"{name:26}{seconds:9.1f}{seconds / bound:7.2f}{gigabytes:12.2f} GB  {metrics}")
    return None


if __name__ == "__main__":
    main()
