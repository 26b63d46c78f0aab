"""The part of `couce data check` that opens every image."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from couce.data.base import DataSet
from couce.preprocess import ImageError, open_image


class Fault(NamedTuple):
    path: Path
    reason: str


def file_faults(data: DataSet, workers: int = 4) -> Iterator[Fault | None]:
    """For each image of the set, its fault, or None if it can be decoded."""
    paths = [*data.train.paths, *data.test.paths]
    with ThreadPoolExecutor(workers) as threads:
        yield from threads.map(_fault, paths)


def _fault(path: Path) -> Fault | None:
    try:
        open_image(path)
    except ImageError as error:
        return Fault(path, str(error))
    return None
