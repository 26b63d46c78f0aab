"""Finds images in folders, and defines how folders become classes and halves.

The first folder below the root is the class of all images in it, at any depth. A root with both
``train/`` and ``test/`` is split into these halves, and the classes are one level deeper. If images
are directly in a folder of such a name, it is not a half but a class with that name.
"""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from couce.errors import CouceError

IMAGE_SUFFIXES = {".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".avif"}

Half = Literal["train", "test"]
HALVES: tuple[Half, Half] = ("train", "test")


class Place(NamedTuple):
    """The class and the half of an image in a tree of class folders."""

    label: str | None  # None: the image is in no class folder
    half: Half | None  # None: the tree has no halves, or the image is outside of them


def image_files(folder: Path) -> list[Path]:
    """All image files below ``folder``, at any depth. Follows links and skips hidden files."""
    found: list[Path] = []
    for top, folders, names in os.walk(folder, followlinks=True):
        folders[:] = [name for name in folders if _to_enter(top, name)]
        files = (Path(top, name) for name in names if not name.startswith("."))
        found += [path for path in files if _is_image(path)]
    return sorted(found)


def _to_enter(top: str, name: str) -> bool:
    """Whether a folder is searched: it is not hidden and does not link to a folder above it."""
    if name.startswith("."):
        return False
    path = os.path.join(top, name)  # noqa: PTH118 (a Path for each folder would be slow)
    if not os.path.islink(path):  # noqa: PTH114
        return True
    target = os.path.realpath(path)
    return os.path.commonpath([os.path.realpath(top), target]) != target


def has_halves(root: Path) -> bool:
    """Whether ``root`` is split into ``train/`` and ``test/``."""
    return all(_holds_only_folders(root / half) for half in HALVES)


def place_of(path: Path, root: Path, halves: bool) -> Place:
    """The class and the half of ``path`` below ``root``.

    ``halves`` is the result of :func:`has_halves` for ``root``, which is computed once for a tree.

    >>> place_of(Path("photos/train/bus/1.jpg"), Path("photos"), halves=True)
    Place(label='bus', half='train')
    >>> place_of(Path("photos/train/1.jpg"), Path("photos"), halves=False)
    Place(label='train', half=None)
    """
    first, *rest = path.relative_to(root).parts
    for half in HALVES:
        if halves and first == half:
            return Place(rest[0] if len(rest) > 1 else None, half)
    return Place(first if rest else None, None)


def labelled_images(root: Path) -> Iterator[tuple[Path, Place]]:
    """Every image below ``root`` with its place."""
    halves = has_halves(root)
    for path in image_files(root):
        yield path, place_of(path, root, halves)


def class_folders(root: Path) -> dict[str, list[Path]]:
    """The image files of each class below ``root``. Both halves of a class are joined."""
    classes: dict[str, list[Path]] = {}
    for path, place in labelled_images(root):
        if place.label is not None:
            classes.setdefault(place.label, []).append(path)
    return classes


def labelled_files(sources: Sequence[Path]) -> list[tuple[Path, str | None]]:
    """The given image files and those below the given folders, each with its class, if any."""
    found: list[tuple[Path, str | None]] = []
    for source in sources:
        if not source.exists():
            raise CouceError(f"there is no file or folder {source}; check the path")
        if source.is_dir():
            found += [(path, place.label) for path, place in labelled_images(source)]
        else:
            found.append((source, None))
    if not found:
        raise CouceError(f"there are no images in {', '.join(map(str, sources))}")
    return found


def _is_image(path: Path) -> bool:
    return path.suffix.lower() in IMAGE_SUFFIXES


def _holds_only_folders(folder: Path) -> bool:
    try:
        with os.scandir(folder) as entries:
            found = [entry for entry in entries if not entry.name.startswith(".")]
    except (FileNotFoundError, NotADirectoryError):
        return False
    folders = [entry for entry in found if entry.is_dir()]
    return bool(folders) and not any(_is_image(Path(entry.name)) for entry in found)
