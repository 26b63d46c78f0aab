"""Compares the throughput of `Embedder` with the bound that onnxruntime and the decoder set.

    python benchmarks/embedder.py MODEL.onnx FOLDER [--images 2000] [--rounds 4]

Model and decoder share the cores, so the bound is 1 / (1/model alone + 1/decoding alone) images/s.
Model, decoding and `Embedder` take turns within one process, each turn on another part of the
images. The memory of the process is read after each turn.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from couce.data.folders import image_files
from couce.embedder import Embedder


def resident() -> float:
    """The resident memory of this process in MB."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("model", type=Path, help="The ONNX model, from `couce export`.")
    parser.add_argument("folder", type=Path, help="A folder of images.")
    parser.add_argument("--images", type=int, default=2000, help="How many images to use.")
    parser.add_argument("--rounds", type=int, default=4, help="How many turns there are.")
    arguments = parser.parse_args()
    files = image_files(arguments.folder)
    files = files[:: max(1, len(files) // arguments.images)][: arguments.images]
    embedder = Embedder(arguments.model)
    print(
        f"{arguments.model.name}, {embedder.preprocess.crop} pixels, {len(files)} images,"
        f" {embedder.threads} threads, batches of {embedder.batch}"
    )

    def decode(paths: list[Path]) -> None:
        with ThreadPoolExecutor(embedder.threads) as threads:
            list(threads.map(embedder.decode, paths))

    ready = np.stack([embedder.decode(path) for path in files[: embedder.batch]])

    def model(paths: list[Path]) -> None:
        for start in range(0, len(paths), embedder.batch):
            embedder.run(ready[: len(paths[start : start + embedder.batch])])

    kinds: dict[str, Callable[[list[Path]], object]] = {
        "model alone": model,
        "decoding alone": decode,
        "Embedder": embedder.embed,
    }
    for work in kinds.values():
        work(files[: 2 * embedder.batch])
    rates: dict[str, list[float]] = {kind: [] for kind in kinds}
    memory = []
    for share in np.array_split(np.arange(len(files)), arguments.rounds):
        paths = [files[i] for i in share]
        for kind, work in kinds.items():
            start = time.perf_counter()
            work(paths)
            rates[kind].append(len(paths) / (time.perf_counter() - start))
        memory.append(resident())
    middle = {kind: statistics.median(values) for kind, values in rates.items()}
    # Each turn has its own bound, because the speed of the machine changes over time.
    bounds = [
        1 / (1 / one + 1 / other)
        for one, other in zip(rates["model alone"], rates["decoding alone"], strict=True)
    ]
    shares = [rate / bound for rate, bound in zip(rates["Embedder"], bounds, strict=True)]
    for kind in kinds:
        print(f"{kind:16}{middle[kind]:9.1f} images/s")
    print(f"{'bound':16}{statistics.median(bounds):9.1f} images/s")
    print(
        f"Embedder / bound {statistics.median(shares):.3f}"
        f" (turns: {', '.join(f'{share:.3f}' for share in shares)})"
    )
    print(f"memory after each turn: {', '.join(f'{each:.0f}' for each in memory)} MB")


if __name__ == "__main__":
    main()
