"""The user's own data sets: trees of class folders, and CSV lists of paths and labels."""

import csv
from pathlib import Path

from couce.data.base import LabelledImage
from couce.data.folders import Half, has_halves, labelled_images
from couce.errors import CouceError


def read(root: Path, train_classes: int | None = None) -> list[LabelledImage]:
    """Reads class folders or a CSV file.

    Class folders have images at any depth. They may be below ``train/`` and ``test/``. A CSV file
    has the columns path (relative to the file) and label, and optionally half. If the data set has
    no halves, the first ``train_classes`` classes by name are the training half. The default is
    half of the classes.
    """
    if root.is_file():
        return _listed(root, train_classes)
    if not root.is_dir():
        raise CouceError(f"there is no data set at {root}; check the path")
    if has_halves(root):
        return [
            LabelledImage(path, place.label, place.half)
            for path, place in labelled_images(root)
            if place.label is not None and place.half is not None
        ]
    found = [(path, place.label) for path, place in labelled_images(root) if place.label]
    return _split(found, train_classes, root)


def _listed(path: Path, train_classes: int | None) -> list[LabelledImage]:
    try:
        with path.open(newline="") as file:
            rows = list(csv.DictReader(file))
    except (UnicodeDecodeError, csv.Error) as error:
        raise CouceError(f"{path} is not a CSV file: {error}") from None
    if not rows or not {"path", "label"} <= rows[0].keys():
        raise CouceError(f"{path} must have the columns path and label, and a row for each image")
    if "half" not in rows[0]:
        pairs = [(path.parent / row["path"], row["label"]) for row in rows]
        return _split(pairs, train_classes, path)
    halves: dict[str, Half] = {"train": "train", "test": "test"}
    for number, row in enumerate(rows, 2):
        if row["half"] not in halves:
            raise CouceError(
                f"{path}, line {number}: half must be train or test, not {row['half']!r}"
            )
    return [
        LabelledImage(path.parent / row["path"], row["label"], halves[row["half"]]) for row in rows
    ]


def _split(
    pairs: list[tuple[Path, str]], train_classes: int | None, root: Path
) -> list[LabelledImage]:
    names = sorted({label for _, label in pairs})
    count = len(names) // 2 if train_classes is None else train_classes
    if not 0 < count < len(names):
        raise CouceError(
            f"{root} has {len(names)} classes, so {count} of them cannot be the training half with"
            " the others as the test half; give each class a folder, or change --train-classes"
        )
    training = set(names[:count])
    return [
        LabelledImage(path, label, "train" if label in training else "test")
        for path, label in pairs
    ]
