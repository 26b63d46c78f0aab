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
    """Opens the index at ``address``.

    The address is a folder, or ``milvus+http://user:password@host:19530/collection``.

    ::

        with open_index("index/") as index:
            hits = index.search(embedder.embed(["bird.jpg"]), k=10, filter={"label": "wren"})

    Args:
        address: where the index is.
        mode: ``read`` opens an existing index for reading. ``write`` creates the index if there is
            none; a folder accepts one writer at a time. ``share`` changes an existing index, and
            several processes may do so at once, as servers do.
        model_hash: the sha256 of the model that embeds. If the index was built with another model,
            this is an error.
        dim: the length of the embeddings, for a new index.
        background: whether an index in a folder is compacted in the background while it is open.
        kind: the index type of a new Milvus collection: hnsw, ivf, ivfpq, flat, or one of Milvus's
            own names. The structure of a folder is chosen when it is compacted.
    """
    if mode not in MODES:
        raise unknown_name("mode", mode, MODES)
    if is_remote(address):
        from couce.index.milvus.index import MilvusIndex

        return MilvusIndex(str(address), mode, model_hash, dim, kind)
    if "://" in str(address):
        raise CouceError(
            f"{address} is not the address of an index; give a folder, or"
            " milvus+http://user:password@host:19530/collection"
        )
    return LocalIndex(Path(address), mode, model_hash, dim, background)


def is_remote(address: str | Path) -> bool:
    """Whether this is the address of a Milvus collection."""
    return str(address).startswith(("milvus+http://", "milvus+https://"))
