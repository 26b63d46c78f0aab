"""Runs `couce` as if only ``couce[cpu]`` were installed. Other packages cannot be imported.

    python serving_only.py evaluate vectors.npz

The requirements of ``couce[cpu]`` come from the metadata of the installed packages, so that this
file needs no list of them.
"""

import re
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.metadata import packages_distributions, requires

from packaging.requirements import Requirement


def needed(name: str, extras: Sequence[str] = ()) -> set[str]:
    """``name`` and all packages that it needs with these extras, by normalised name."""
    found: set[str] = set()
    waiting = [(name, tuple(extras))]
    while waiting:
        current, wanted = waiting.pop()
        key = re.sub(r"[-_.]+", "-", current).lower()
        if key in found and not wanted:
            continue
        found.add(key)
        for line in requires(current) or ():
            requirement = Requirement(line)
            marker = requirement.marker
            if marker is None or any(marker.evaluate({"extra": e}) for e in ("", *wanted)):
                waiting.append((requirement.name, tuple(requirement.extras)))
    return found


class OnlyServing(MetaPathFinder):
    """Finds no module that belongs to a package outside of ``couce[cpu]``."""

    def __init__(self) -> None:
        self._there = needed("couce", ["cpu"])
        self._owners = packages_distributions()

    def find_spec(self, name: str, *_: object) -> ModuleSpec | None:
        owners = {re.sub(r"[-_.]+", "-", o).lower() for o in self._owners.get(name, ())}
        if "." not in name and owners and not owners & self._there:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return None


if __name__ == "__main__":
    for module in [each for each in sys.modules if each.split(".")[0] == "packaging"]:
        del sys.modules[module]
    sys.meta_path.insert(0, OnlyServing())
    sys.argv = ["couce", *sys.argv[1:]]
    from couce.cli import main

    main()
