"""Opens data sets by name. Other names are paths of class folders or CSV lists."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from couce.data import cars, cub, own, sop
from couce.data.base import Counts, DataSet, LabelledImage, Split
from couce.data.demo import write_demo
from couce.errors import CouceError
from couce.plugins import find

__all__ = ["DATASETS", "Counts", "DataSet", "LabelledImage", "Source", "Split", "open_dataset"]


class Source(NamedTuple):
    """A known data set: how it is read, and how many classes and images its halves must have."""

    read: Callable[[Path], list[LabelledImage]]
    counts: dict[str, Counts]


DATASETS: dict[str, Source] = {
    "cub": Source(cub.read, cub.COUNTS),
    "cars": Source(cars.read, cars.COUNTS),
    "sop": Source(sop.read, sop.COUNTS),
}


def open_dataset(
    name: str,
    root: Path | str | None = None,
    train_classes: int | None = None,
    confounding: float = 0.9,
) -> DataSet:
    """The data set of that name in the folder ``root``, or the data set at the path ``name``.

    The default of ``root`` is ``data/NAME``. Without a ``root``, the demo set is drawn first. Only
    lists and folders are read; no image is opened.
    """
    root = None if root is None else Path(root)
    if name == "demo":
        target = root or Path("data") / f"demo-{confounding:g}"
        if root is None:
            target.parent.mkdir(parents=True, exist_ok=True)
            write_demo(target, confounding)
        return DataSet.of(name, target, own.read(target))
    path = root or Path(name)
    if name not in DATASETS and path.exists():
        return DataSet.of(path.name, path, own.read(path, train_classes))
    source: Source = find("data set", name, DATASETS, ["demo", "any folder or CSV list"])
    target = root or Path("data") / name
    return DataSet.of(name, target, source.read(target), source.counts)


def check_counts(data: DataSet) -> None:
    """Refuses a known set without its published counts, as its metrics would not be comparable."""
    for fault in data.count_faults():
        raise CouceError(
            f"{data.name} in {data.root} is not complete: {fault}; list all faults with `couce data"
            f" check {data.name}`, or train on it as it is with --allow-missing"
        )
