"""Losses, backbones and data sets of the user's own, without a change to this package.

There are two ways. An installed package offers an entry point in one of the :data:`GROUPS`. Or a
Python file adds to the tables ``LOSSES``, ``BACKBONES`` and ``DATASETS`` itself and is named with
``--plugin``. A checkpoint notes which of these it needs. It never loads them: a checkpoint may come
from a stranger, so the user names the file again.
"""

import hashlib
from collections.abc import Iterable, Mapping
from importlib.metadata import entry_points
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from couce.errors import CouceError, unknown_name

GROUPS = {"loss": "couce.losses", "backbone": "couce.backbones", "data set": "couce.datasets"}

# The plug-ins that this process has loaded. The key is the name of a file or a package.
_loaded: dict[str, str] = {}


def load_plugins(files: Iterable[str | Path]) -> None:
    """Runs Python files that add to the tables. A file that was loaded before is not run again."""
    for file in map(Path, files):
        try:
            digest = hashlib.sha256(file.read_bytes()).hexdigest()
        except OSError as error:
            raise CouceError(f"the plug-in {file} cannot be read: {error.strerror}") from None
        if _loaded.get(file.name) == digest:
            continue
        spec = spec_from_file_location(f"couce_plugin_{file.stem}", file)
        if spec is None or spec.loader is None:
            raise CouceError(f"the plug-in {file} is not a Python file; its name must end in .py")
        try:
            spec.loader.exec_module(module_from_spec(spec))
        except Exception as error:  # whatever the user's own code raises
            raise CouceError(
                f"the plug-in {file} cannot be loaded: {type(error).__name__}: {error}"
            ) from error
        _loaded[file.name] = digest


def find(kind: str, name: str, table: dict[str, Any], others: Iterable[str] = ()) -> Any:
    """The entry of that name in a table of this ``kind``, or else in an installed package.

    An unknown name is an error that lists the known names and ``others``.
    """
    if name not in table:
        points = entry_points(group=GROUPS[kind], name=name)
        if not points:
            raise unknown_name(kind, name, [*table, *others])
        (point, *_) = points
        package = point.dist.name if point.dist is not None else point.value
        try:
            table[name] = point.load()
        except Exception as error:  # whatever the user's own code raises
            raise CouceError(
                f"the {kind} {name!r} of the package {package} cannot be loaded:"
                f" {type(error).__name__}: {error}"
            ) from error
        _loaded[package] = point.dist.version if point.dist is not None else ""
    return table[name]


def loaded() -> dict[str, str]:
    """The plug-ins of this process: a file's name with its sha256, a package's with its version."""
    return dict(_loaded)


def check_plugins(needed: Mapping[str, str], what: str) -> None:
    """Raises an error if ``what`` was made with a plug-in file that is not loaded."""
    missing = [name for name in needed if name.endswith(".py") and name not in _loaded]
    if missing:
        options = " ".join(f"--plugin {name}" for name in missing)
        raise CouceError(
            f"{what} was made with {', '.join(missing)}, which is not loaded; add {options} with"
            " the path of the file"
        )
