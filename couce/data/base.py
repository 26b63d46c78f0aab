"""A data set: two halves of labelled image files, where no class is in both halves."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from couce.data.folders import Half
from couce.errors import CouceError


class LabelledImage(NamedTuple):
    """One image file, its class, and the half of the set that the class belongs to."""

    path: Path
    label: str
    half: Half


class Counts(NamedTuple):
    """How many classes and images a half has."""

    classes: int
    images: int

    def __str__(self) -> str:
        return f"{self.classes} classes, {self.images} images"


@dataclass(frozen=True)
class Split:
    """Image files and their classes. A class is its index in ``names``."""

    paths: tuple[Path, ...]
    labels: NDArray[np.intp]  # (N,)
    names: tuple[str, ...]

    @classmethod
    def of(cls, items: Iterable[LabelledImage]) -> "Split":
        ordered = sorted(items, key=lambda item: (item.label, str(item.path)))
        names, labels = np.unique([item.label for item in ordered], return_inverse=True)
        return cls(tuple(item.path for item in ordered), labels, tuple(map(str, names)))

    @property
    def counts(self) -> Counts:
        return Counts(len(self.names), len(self.paths))

    def select(self, keep: NDArray[np.bool_]) -> "Split":
        """The images where ``keep`` (N,) is true. The remaining classes are numbered anew."""
        names, labels = np.unique(self.labels[keep], return_inverse=True)
        paths = tuple(path for path, kept in zip(self.paths, keep, strict=True) if kept)
        return Split(paths, labels, tuple(self.names[code] for code in names))


@dataclass(frozen=True)
class DataSet:
    name: str
    root: Path
    train: Split
    test: Split
    # For a known set, the published counts of each half.
    published: Mapping[str, Counts] | None = None

    @classmethod
    def of(
        cls,
        name: str,
        root: Path,
        items: Iterable[LabelledImage],
        published: Mapping[str, Counts] | None = None,
    ) -> "DataSet":
        halves: dict[Half, list[LabelledImage]] = {"train": [], "test": []}
        for item in items:
            halves[item.half].append(item)
        for half, members in halves.items():
            if not members:
                raise CouceError(
                    f"{root} has no images in its {half} half; both halves need some images"
                )
        return cls(name, root, Split.of(halves["train"]), Split.of(halves["test"]), published)

    def count_faults(self) -> list[str]:
        """How the counts of a known set differ from the published counts."""
        found = {"train": self.train.counts, "test": self.test.counts}
        return [
            f"the {half} half has {found[half]}, but {expected} were published"
            for half, expected in (self.published or {}).items()
            if found[half] != expected
        ]
