"""The decoding, model and search that all compared servers use: those of CouCE.

Each server is written as its own documentation shows. So the servers only differ in how requests
reach these functions. Model and index are given as environment variables, because the workers of
some servers are processes of their own.
"""

import os
from typing import Any

from couce.embedder import Embedder
from couce.index import Hit, Index, open_index

BATCH, WAIT, K = 16, 0.005, 10  # the defaults of `couce serve`


def opened() -> tuple[Embedder, Index]:
    return Embedder(os.environ["PEER_MODEL"]), open_index(os.environ["PEER_INDEX"])


def answer(hits: list[Hit]) -> dict[str, Any]:
    return {"hits": [{"id": hit.id, "score": hit.score, "label": hit.item.label} for hit in hits]}
