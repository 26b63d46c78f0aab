"""A server with BentoML and its adaptive batching. The command of BentoML starts it."""

import os
import sys
from pathlib import Path
from typing import Any

import bentoml
import numpy as np
from common import BATCH, K, answer, opened


@bentoml.service(workers=1, traffic={"timeout": 60, "max_concurrency": 1000})
class Search:
    def __init__(self) -> None:
        self.embedder, self.gallery = opened()

    @bentoml.api(batchable=True, max_batch_size=BATCH)  # type: ignore[untyped-decorator]
    def search(self, image: list[Path]) -> list[dict[str, Any]]:
        pixels = np.stack([self.embedder.decode(path) for path in image])
        return [answer(hits) for hits in self.gallery.search(self.embedder.run(pixels), K)]


if __name__ == "__main__":
    program = str(Path(sys.executable).with_name("bentoml"))
    os.chdir(Path(__file__).parent)
    os.execv(  # noqa: S606 (a program of the same environment)
        program,
        [program, "serve", "bento:Search", "--host", "127.0.0.1", "--port", sys.argv[1]],
    )
