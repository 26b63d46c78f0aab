"""The paths of an item as JSON, for both backends. A path that is not UTF-8 is stored as bytes."""

import base64
import json
import os
from collections.abc import Sequence
from typing import Any


def paths_json(paths: Sequence[str], stamps: Sequence[int]) -> str:
    """Paths with their stamps as JSON. A path that is not UTF-8 is written as base64.

    >>> paths_json(["a.jpg", os.fsdecode(b"\\xff.jpg")], [1, 2])
    '[["a.jpg", 1], [{"bytes": "/y5qcGc="}, 2]]'
    """
    rows: list[tuple[str | dict[str, str], int]] = []
    for path, stamp in zip(paths, stamps, strict=True):
        try:
            path.encode()
            rows.append((path, stamp))
        except UnicodeEncodeError:
            rows.append(({"bytes": base64.b64encode(os.fsencode(path)).decode()}, stamp))
    return json.dumps(rows, ensure_ascii=False)


def paths_from_json(text: str) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """The paths and stamps from the JSON of :func:`paths_json`."""
    return paths_of(json.loads(text))


def paths_of(rows: list[Any]) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """The paths and stamps from JSON that is already decoded."""
    paths = tuple(
        path if isinstance(path, str) else os.fsdecode(base64.b64decode(path["bytes"]))
        for path, _ in rows
    )
    return paths, tuple([stamp for _, stamp in rows])
