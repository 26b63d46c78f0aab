"""The paths of an item as JSON, in both backends: text where they are text, else their bytes."""

import base64
import json
import os
from collections.abc import Sequence
from typing import Any


def paths_json(paths: Sequence[str], stamps: Sequence[int]) -> str:
    """Paths with their stamps. A path that is no UTF-8 goes in as its bytes.

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
    return paths_of(json.loads(text))


def paths_of(rows: list[Any]) -> tuple[tuple[str, ...], tuple[int, ...]]:
    paths = tuple(
        path if isinstance(path, str) else os.fsdecode(base64.b64decode(path["bytes"]))
        for path, _ in rows
    )
    return paths, tuple([stamp for _, stamp in rows])
