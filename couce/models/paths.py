"""How commands name a model: as a checkpoint, an ONNX file or the folder of a run."""

import re
from collections.abc import Sequence
from pathlib import Path

from couce.errors import CouceError


def is_model(text: str) -> bool:
    """Whether an argument names a model: a checkpoint, an ONNX file or the folder of a run."""
    return Path(text).suffix in (".pt", ".onnx") or (Path(text) / "last.pt").is_file()


def checkpoint_of(path: Path) -> Path:
    return path if path.suffix == ".pt" else path / "last.pt"


def unique_names(paths: Sequence[Path]) -> list[str]:
    """A short name for each path, made of the parts in which the paths differ.

    >>> unique_names([Path("a/base/last.pt"), Path("b/base/last.pt")])
    ['a', 'b']
    >>> study = Path("studies")
    >>> unique_names([study / "lr=1-base-seed0-12ab34cd", study / "lr=1-couce-seed0-00ff00ff"])
    ['base', 'couce']
    >>> unique_names([study / "lr=1-base-seed0-12ab34cd", study / "lr=2-couce-seed0-00ff00ff"])
    ['lr=1-base', 'lr=2-couce']
    >>> unique_names([Path("runs/base"), Path("model.onnx")])
    ['base', 'model.onnx']
    """
    parts = [path.absolute().parts for path in paths]
    for length in range(1, max(map(len, parts), default=0) + 1):
        names = ["/".join(each[-length:]) for each in parts]
        if len(set(names)) == len(names):
            return _differing([re.split("[-/]", name) for name in names]) or names
    raise CouceError(f"the same model is named twice: {', '.join(map(str, paths))}")


def _differing(words: list[list[str]]) -> list[str] | None:
    """Names of the words that differ, without the hashes of a study if they are not needed.

    None if the paths have different numbers of words, or if no names of this kind are unique.
    """
    if len(words) < 2 or len(set(map(len, words))) > 1:
        return None
    columns = [column for column in zip(*words, strict=True) if len(set(column)) > 1]
    hashes = all(re.fullmatch("[0-9a-f]{8}", word) for word in columns[-1])
    for wanted in (columns[:-1], columns) if hashes else (columns,):
        names = ["-".join(row) for row in zip(*wanted, strict=True)]
        if len(set(names)) == len(words):
            return names
    return None
