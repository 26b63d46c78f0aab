"""What the servers that CouCE's is compared with share: its own functions for decoding, model and search.

They are written the way their own documentation shows; what differs is how requests reach these functions.
Model and index come in the environment, because their workers are processes of their own.
"""

import os
from typing import Any

from couce.embedder import Embedder
from couce.index import Hit, Index, open_index

BATCH, WAIT, K = 16, 0.005, 10  # as `couce serve` has them


def opened() -> tuple[Embedder, Index]:
    return Embedder(os.environ["PEER_MODEL"]), open_index(os.environ["PEER_INDEX"])


def answer(hits: list[Hit]) -> dict[str, Any]:
    return {"hits": [{"id": hit.id, "score": hit.score, "label": hit.item.label} for hit in hits]}
