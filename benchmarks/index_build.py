"""Compares building an index of JPEG files with embedding them alone.

    python benchmarks/index_build.py MODEL.onnx PHOTOS [--images 2000] [--rounds 3]

PHOTOS is a folder of class folders. The embedder alone reads, decodes and embeds the same files,
but stores nothing. Both run in turns. There are two bounds. The build must reach at least 0.9 of
the embedder's rate. A second build without new files may take at most 5 % of the time of the first.
The times include neither imports nor the loading of the model.
"""

import argparse
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from couce.data.folders import image_files
from couce.embedder import Embedder
from couce.index.building.build import build
from couce.index.building.embedding import in_process
from couce.index.local.index import LocalIndex


def linked(photos: Path, count: int, gallery: Path) -> Path:
    """Makes a gallery with links to ``count`` of the photos, spread evenly over the classes."""
    files = image_files(photos)
    step = max(1, len(files) // count)
    for path in files[::step][:count]:
        target = gallery / path.parent.name / path.name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.symlink_to(path.absolute())
    return gallery


def index(gallery: Path, embedder: Embedder, folder: Path) -> int:
    """Builds the index and returns the number of new items."""
    with LocalIndex(folder, "write", embedder.hash, background=False) as found:
        summary = build(gallery, found, in_process(lambda: embedder))
        if summary.changed:
            found.compact()
        return summary.added


def timed(work: Callable[[], object]) -> float:
    """The seconds that ``work`` takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path, help="an ONNX model that embeds the images")
    parser.add_argument("photos", type=Path, help="a folder with a folder of images per class")
    parser.add_argument(
        "--images", type=int, default=2000, help="how many of the photos are used (default: 2000)"
    )
    parser.add_argument(
        "--rounds", type=int, default=3, help="how often each time is measured (default: 3)"
    )
    arguments = parser.parse_args()
    embedder = Embedder(arguments.model)
    with tempfile.TemporaryDirectory() as name:
        gallery = linked(arguments.photos, arguments.images, Path(name) / "gallery")
        files = image_files(gallery)
        embedder.embed(files[:64])  # warms up
        alone, first, second = [], [], []
        folder = Path(name) / "index"
        for _ in range(arguments.rounds):
            shutil.rmtree(folder, ignore_errors=True)
            alone.append(timed(lambda: embedder.embed(files)))
            first.append(timed(lambda: index(gallery, embedder, folder)))
            second.append(timed(lambda: index(gallery, embedder, folder)))
    bare, building, again = (statistics.median(times) for times in (alone, first, second))
    print(f"{len(files)} files, {embedder.dim} dimensions, {arguments.rounds} rounds, medians")
    print(f"embedder alone   {bare:7.2f} s  {len(files) / bare:7.1f} images/s")
    print(f"first build      {building:7.2f} s  {len(files) / building:7.1f} images/s")
    print(f"second build     {again:7.2f} s")
    print(f"build rate / embedder's rate     {bare / building:6.3f}   (bound: at least 0.9)")
    print(f"second build / first build       {again / building:6.3f}   (bound: at most 0.05)")


if __name__ == "__main__":
    main()
