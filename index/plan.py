"""Computes the memory and the machines that a gallery needs, and shows the formulas."""

import math
from typing import NamedTuple

from couce.errors import CouceError
from couce.index.local.structures import FLAT_UP_TO, MEMORY_SHARE, codes, lists

_GRAPH = 32  # links of a node in HNSW32; its lowest layer has twice as many
_ROW = 400  # bytes of an item in the catalog without its vector, with a path of usual length


class Option(NamedTuple):
    type: str
    milvus: str  # the name of the same type in Milvus
    formula: str
    bytes: float  # of memory
    machines: int


class Plan(NamedTuple):
    options: list[Option]
    chosen: Option
    advice: list[str]


def plan(vectors: float, dim: int, memory: float, rate: float) -> Plan:
    """What each type of index needs for ``vectors`` vectors of ``dim`` dimensions.

    ``memory`` is the memory of one machine in bytes, and ``rate`` the images per second that one
    worker embeds.
    """
    if vectors < 1 or dim < 1 or memory <= 0 or rate <= 0:
        raise CouceError(
            "a plan needs at least 1 vector, at least 1 dimension, and a memory and a rate above 0"
        )
    n, d = int(vectors), dim
    cells, code = lists(n), codes(d)
    usable = MEMORY_SHARE * memory

    def option(type: str, milvus: str, formula: str, size: float) -> Option:  # noqa: A002
        return Option(type, milvus, formula, size, max(1, math.ceil(size / usable)))

    options = [
        option("flat", "FLAT", "n·(4d + 8)", n * (4 * d + 8)),
        option("hnsw", "HNSW", f"n·(4d + 8 + 4·{2 * _GRAPH})", n * (4 * d + 8 + 8 * _GRAPH)),
        option("ivf", "IVF_FLAT", f"n·(4d + 8) + {cells}·4d", n * (4 * d + 8) + cells * 4 * d),
        option("ivfpq", "IVF_PQ", f"n·({code} + 8) + {cells}·4d", n * (code + 8) + cells * 4 * d),
    ]
    flat, _, ivf, ivfpq = options
    chosen = flat if n <= FLAT_UP_TO else ivf if ivf.machines == 1 else ivfpq
    catalog = n * (4 * d + _ROW)
    hours = n / rate / 3600
    advice = [
        f"catalog on disk: n·(4d + {_ROW}) = {gigabytes(catalog)}",
        f"embedding: n / {rate:g} images/s = {hours:,.1f} hours for one worker;"
        " `couce index build` divides this with --shard i/n or --engine ray",
        f"vectors may take {MEMORY_SHARE:.0%} of a machine's {gigabytes(memory)}",
    ]
    if chosen.machines > 1:
        advice.append(
            f"more than one machine: Milvus with {chosen.milvus} on {chosen.machines} query nodes"
            " (couce index build --to milvus+http://host:19530/name)"
        )
    else:
        advice.append(f"one machine: a folder, --type {chosen.type} (auto chooses the same)")
    return Plan(options, chosen, advice)


def gigabytes(size: float) -> str:
    """A size in GB, or in MB if it is small.

    >>> gigabytes(2_056_000_000)
    '2.06 GB'
    """
    return f"{size / 1e9:,.2f} GB" if size >= 1e7 else f"{size / 1e6:,.2f} MB"
