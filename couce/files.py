"""Image files in folders."""

from collections.abc import Sequence
from pathlib import Path

from couce.errors import CouceError

IMAGE_SUFFIXES = {".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".avif"}


def image_files(folder: Path) -> list[Path]:
    """All image files below ``folder``, at any depth, hidden ones left out."""
    return sorted(
        path
        for path in folder.rglob("*")
        if path.suffix.lower() in IMAGE_SUFFIXES
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    )


def has_halves(root: Path) -> bool:
    """Whether class folders stand below ``train/`` and ``test/`` rather than in ``root`` itself."""
    return all((root / half).is_dir() for half in ("train", "test"))


def class_of(path: Path, root: Path, halves: bool) -> str | None:
    """The name of the class folder below ``root`` that ``path`` stands in, if any."""
    parts = path.relative_to(root).parts
    if halves and parts[0] in ("train", "test"):
        parts = parts[1:]
    return parts[0] if len(parts) > 1 else None


def labelled_files(sources: Sequence[Path]) -> list[tuple[Path, str | None]]:
    """Image files, and those below folders with the name of the class folder they stand in, if any.

    Class folders may stand below ``train/`` and ``test/``.
    """
    found: list[tuple[Path, str | None]] = []
    for source in sources:
        if not source.exists():
            raise CouceError(f"there is no file or folder {source}")
        if source.is_dir():
            halves = has_halves(source)
            found += [(path, class_of(path, source, halves)) for path in image_files(source)]
        else:
            found.append((source, None))
    if not found:
        raise CouceError(f"there are no images in {', '.join(map(str, sources))}")
    return found
