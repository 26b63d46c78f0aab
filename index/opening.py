"""Opens an index by its address: a folder, or a Milvus collection."""

from pathlib import Path
from typing import get_args

from couce.errors import CouceError, unknown_name
from couce.index.base import Index, Mode
from couce.index.local.index import LocalIndex

MODES = get_args(Mode)


def open_index(
    address: str | Path,
    mode: Mode = "read",
    model_hash: str | None = None,
    dim: int | None = None,
    background: bool = True,
    kind: str | None = None,
) -> Index:
    """The index at ``address``: a folder, or ``milvus+http://user:password@host:19530/collection``.

    ::

        with open_index("index/") as index:
            hits = index.search(embedder.embed(["bird.jpg"]), k=10, filter={"label": "wren"})

    Args:
        mode: ``write`` makes the index where there is none. A folder has one writer at a time. ``share``
            changes an index that is there beside other processes that share it: what servers do.
        model_hash: sha256 of the model that embeds; an index of another model is refused.
        dim: length of its embeddings, for an index that is to be made.
        background: whether a folder's recent changes are compacted now and then while it is open.
        kind: the type of index that a new Milvus collection gets: hnsw, ivf, ivfpq, flat, or its own
            name of one. A folder is told when it is compacted.
    """
    if mode not in MODES:
        raise unknown_name("mode", mode, MODES)
    if is_remote(address):
        from couce.index.milvus.index import MilvusIndex

        return MilvusIndex(str(address), mode, model_hash, dim, kind)
    if "://" in str(address):
        raise CouceError(
            f"{address} is no address of an index; it is a folder, or"
            " milvus+http://user:password@host:19530/collection"
        )
    return LocalIndex(Path(address), mode, model_hash, dim, background)


def is_remote(address: str | Path) -> bool:
    return str(address).startswith(("milvus+http://", "milvus+https://"))
