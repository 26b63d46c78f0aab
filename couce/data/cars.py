"""Cars-196 (Krause et al., 2013): 196 models of cars. The first 98 are the training half."""

from pathlib import Path
from typing import Any

from couce.data.base import Counts, LabelledImage
from couce.data.folders import Half, class_folders
from couce.errors import CouceError

COUNTS = {"train": Counts(98, 8054), "test": Counts(98, 8131)}


def read(root: Path) -> list[LabelledImage]:
    """Reads any of the three forms in which Cars-196 exists.

    These are ``cars_annos.mat`` with ``car_ims/``, the later ``cars_train/`` and ``cars_test/``
    with an annotation file each, and class folders.
    """
    if (root / "cars_annos.mat").is_file():
        return _annotated(root, root / "cars_annos.mat", "relative_im_path")
    later = [
        (root / "cars_train", _find(root, "cars_train_annos.mat")),
        (root / "cars_test", _find(root, "cars_test_annos_withlabels.mat")),
    ]
    if all(annotations for _, annotations in later):
        return [
            item
            for folder, annotations in later
            if annotations
            for item in _annotated(folder, annotations, "fname")
        ]
    for base in (root, root / "car_data" / "car_data"):
        if base.is_dir() and len(classes := class_folders(base)) > 1:
            return _by_folder(classes)
    raise CouceError(
        f"there is no Cars-196 in {root}: expected cars_annos.mat with car_ims/, cars_train/ and"
        " cars_test/ with cars_train_annos.mat and cars_test_annos_withlabels.mat, or class folders"
    )


def _find(root: Path, name: str) -> Path | None:
    return next((p for p in (root / name, root / "devkit" / name) if p.is_file()), None)


def _annotated(folder: Path, annotations: Path, field: str) -> list[LabelledImage]:
    from scipy.io import loadmat

    try:
        rows: Any = loadmat(annotations, squeeze_me=True)["annotations"]
        return [
            LabelledImage(
                folder / str(row[field]), f"{int(row['class']):03}", _half(int(row["class"]))
            )
            for row in rows
        ]
    except (KeyError, ValueError, TypeError, IndexError, OSError) as error:
        raise CouceError(f"{annotations} is not an annotation file of Cars-196: {error}") from None


def _by_folder(classes: dict[str, list[Path]]) -> list[LabelledImage]:
    """Assigns class folders to halves.

    If all file names are official image numbers, the numbers decide: they are 1-16185 in the order
    of the classes. Otherwise the alphabetical order of the folders decides.
    """
    stems = [path.stem for paths in classes.values() for path in paths]
    numbered = len(set(stems)) == len(stems) and all(s.isdecimal() for s in stems)
    items = []
    for place, name in enumerate(sorted(classes, key=str.encode), 1):
        first = min(int(path.stem) for path in classes[name]) if numbered else 0
        half: Half = ("train" if first <= 8054 else "test") if numbered else _half(place)
        items += [LabelledImage(path, name, half) for path in classes[name]]
    return items


def _half(class_id: int) -> Half:
    return "train" if class_id <= 98 else "test"
