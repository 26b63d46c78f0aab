"""The writer of the crash test. It changes an index until it is killed.

It announces each change in a log before the change, and acknowledges it after the change. Each line
is one write. So the log shows after a kill which changes the index must have, and which one it may
have.
"""

import json
import os
import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from couce.index import NewItem
from couce.index.local.index import LocalIndex
from couce.index.local.manifest import Structure

DIM = 8


def vector(key: int) -> NDArray[np.float32]:
    row = np.random.default_rng(key).standard_normal(DIM).astype(np.float32)
    return row / np.linalg.norm(row)


def main(folder: Path, log: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    handle = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def note(**values: object) -> None:
        os.write(handle, (json.dumps(values) + "\n").encode())

    with LocalIndex(folder, "write", background=False) as index:
        note(event="open")
        for turn in range(10**9):
            key = seed * 10**6 + turn
            names = [f"i{n}" for n in rng.choice(60, size=rng.integers(1, 9), replace=False)]
            dice = rng.random()
            if dice < 0.5:
                note(event="try", change="add", key=key, ids=names)
                index.add(
                    NewItem(
                        vector(key + 1000 * place), id=name, label=str(key), metadata={"key": key}
                    )
                    for place, name in enumerate(names)
                )
                note(event="done", key=key)
            elif dice < 0.8:
                note(event="try", change="remove", key=key, ids=names)
                index.remove(names)
                note(event="done", key=key)
            else:
                asked = str(rng.choice(["flat", "ivf", "ivf", "hnsw"]))
                index.compact(Structure(asked=asked), fresh=bool(rng.random() < 0.5))
            index.search(vector(key)[None], 3)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
