"""`couce data check`: counts against the published ones, and every file opened."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from couce.preprocess import ImageError, open_image
from couce.train.data import DATASETS, DataSet


class Fault(NamedTuple):
    path: Path
    reason: str


def count_faults(data: DataSet) -> list[str]:
    """Where the classes and images of a known set differ from the published numbers."""
    if data.name not in DATASETS:
        return []
    halves = {"train": data.train.counts, "test": data.test.counts}
    return [
        f"the {half} half has {halves[half]}, but {expected} were published"
        for half, expected in DATASETS[data.name].counts.items()
        if halves[half] != expected
    ]


def file_faults(data: DataSet, workers: int = 4) -> Iterator[Fault | None]:
    """For each image of the set, what is wrong with it, or None."""
    paths = [*data.train.paths, *data.test.paths]
    with ThreadPoolExecutor(workers) as threads:
        yield from threads.map(_fault, paths)


def _fault(path: Path) -> Fault | None:
    try:
        open_image(path)
    except ImageError as error:
        return Fault(path, str(error))
    return None
