"""CUB-200-2011 (Wah et al., 2011): 200 species of birds. 1-100 are the training half."""

import re
from pathlib import Path

from couce.data.base import Counts, LabelledImage
from couce.data.folders import Half, class_folders
from couce.errors import CouceError

COUNTS = {"train": Counts(100, 5864), "test": Counts(100, 5924)}


def read(root: Path) -> list[LabelledImage]:
    """Reads the official tree (``images.txt`` and its other lists) or class folders.

    Both may be in ``root`` itself or in ``CUB_200_2011/``. Class folders may also be in
    ``images/``.
    """
    for base in (root, root / "CUB_200_2011"):
        if (base / "images.txt").is_file():
            return _official(base)
    for base in (root, root / "images", root / "CUB_200_2011", root / "CUB_200_2011" / "images"):
        if base.is_dir() and len(classes := class_folders(base)) > 1:
            return _by_folder(classes)
    raise CouceError(
        f"there is no CUB-200-2011 in {root}: expected images.txt with images/, or class folders;"
        " `couce data get cub` downloads it"
    )


def _official(base: Path) -> list[LabelledImage]:
    paths = _table(base / "images.txt")
    labels = _table(base / "image_class_labels.txt")
    names = _table(base / "classes.txt")
    return [
        LabelledImage(base / "images" / path, names[labels[number]], _half(int(labels[number])))
        for number, path in paths.items()
    ]


def _table(path: Path) -> dict[str, str]:
    """The lines ``NUMBER VALUE`` of a file, as a mapping."""
    try:
        lines = path.read_text().split("\n")
        return dict(line.split(maxsplit=1) for line in map(str.strip, lines) if line)
    except (OSError, ValueError) as error:
        raise CouceError(f"{path} cannot be read as a list of CUB-200-2011: {error}") from None


def _by_folder(classes: dict[str, list[Path]]) -> list[LabelledImage]:
    """Assigns class folders to halves.

    The number at the start of a name decides, as in ``001.Black_footed_Albatross``. Names without a
    number are counted in alphabetical order.
    """
    items = []
    for place, name in enumerate(sorted(classes), 1):
        number = re.match(r"(\d+)\.", name)
        half = _half(int(number[1]) if number else place)
        items += [LabelledImage(path, name, half) for path in classes[name]]
    return items


def _half(class_id: int) -> Half:
    return "train" if class_id <= 100 else "test"
