"""What a data set is: two halves of labelled image files, with no class in both."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from couce.errors import CouceError
from couce.files import image_files

Half = Literal["train", "test"]


class Item(NamedTuple):
    """One image file, its class, and the half of the set that the class belongs to."""

    path: Path
    label: str
    half: Half


class Counts(NamedTuple):
    """Classes and images of a half."""

    classes: int
    images: int

    def __str__(self) -> str:
        return f"{self.classes} classes, {self.images} images"


@dataclass(frozen=True)
class Split:
    """Image files and their classes as codes from 0, in the order of ``names``."""

    paths: tuple[Path, ...]
    labels: NDArray[np.intp]  # (N,)
    names: tuple[str, ...]

    @classmethod
    def of(cls, items: Iterable[Item]) -> "Split":
        ordered = sorted(items, key=lambda item: (item.label, str(item.path)))
        names, labels = np.unique([item.label for item in ordered], return_inverse=True)
        return cls(tuple(item.path for item in ordered), labels, tuple(map(str, names)))

    @property
    def counts(self) -> Counts:
        return Counts(len(self.names), len(self.paths))

    def select(self, keep: NDArray[np.bool_]) -> "Split":
        """The images where ``keep`` (N,) is true, with the classes that are left coded anew."""
        names, labels = np.unique(self.labels[keep], return_inverse=True)
        paths = tuple(path for path, kept in zip(self.paths, keep, strict=True) if kept)
        return Split(paths, labels, tuple(self.names[code] for code in names))


@dataclass(frozen=True)
class DataSet:
    name: str
    root: Path
    train: Split
    test: Split

    @classmethod
    def of(cls, name: str, root: Path, items: Iterable[Item]) -> "DataSet":
        halves: dict[Half, list[Item]] = {"train": [], "test": []}
        for item in items:
            halves[item.half].append(item)
        for half, members in halves.items():
            if not members:
                raise CouceError(f"{root} has no images in its {half} half")
        return cls(name, root, Split.of(halves["train"]), Split.of(halves["test"]))


def class_folders(root: Path) -> dict[str, list[Path]]:
    """The image files of each class folder, by its name.

    With ``train/`` and ``test/`` above them, the files of a class that stands in both are joined.
    """
    tops = [root / half for half in ("train", "test") if (root / half).is_dir()] or [root]
    classes: dict[str, list[Path]] = {}
    for top in tops:
        for folder in sorted(path for path in top.iterdir() if path.is_dir()):
            if files := image_files(folder):
                classes.setdefault(folder.name, []).extend(files)
    return classes
