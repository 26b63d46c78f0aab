"""POST /search: finds the items that look like an image."""

import time
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Request
from pydantic import BaseModel, Field, field_validator
from starlette.responses import JSONResponse

from couce.errors import CouceError
from couce.index import Hit, Index
from couce.index.base import unit_rows
from couce.index.filters import Filter, parse
from couce.server.auth import may_read
from couce.server.http.problems import IMAGE_CODES, Problem, documented
from couce.server.http.schema import FILTERS, image_body
from couce.server.http.uploads import Options, Upload, all_of, read
from couce.server.image_batcher import Row
from couce.server.routes.common import MAX_K, Service, image_address, service_of, while_connected
from couce.server.search_batcher import Wanted
from couce.server.serving import Serving

_DEEPEST = 16_384  # most hits that are examined for groups; Milvus returns no more

router = APIRouter()


class SearchOptions(Options):
    id: str | None = Field(
        None, description="The id of an item to search with, instead of an image."
    )
    vector: list[float] | None = Field(
        None, max_length=65_536, description="An embedding to search with, instead of an image."
    )
    k: int = Field(10, ge=1, le=MAX_K, description="How many hits to return.")
    offset: int = Field(0, ge=0, le=10_000, description="How many of the best hits to skip.")
    filter: list[str] = Field(
        default_factory=list,
        max_length=64,
        description="label=x, id=x or metadata.KEY=x. If a field is repeated, any of its values"
        " matches.",
        examples=[["label=wren"]],
        json_schema_extra=FILTERS,
    )
    min_score: float | None = Field(
        None, ge=-1, le=1, description="The lowest cosine similarity of a hit."
    )
    group_by: Literal["label"] | None = Field(
        None, description="Return only the best hit of each label."
    )

    @field_validator("vector", mode="before")
    @classmethod
    def _of_numbers(cls, value: object) -> object:
        return all_of(value, (int, float), "numbers")


class HitBody(BaseModel):
    id: str = Field(examples=["3f2a"])
    score: float = Field(description="The cosine similarity.", examples=[0.9312])
    label: str | None = Field(examples=["wren"])
    metadata: dict[str, Any] = Field(examples=[{"year": 2024}])
    image: str = Field(description="The address of its thumbnail.", examples=["/items/3f2a/image"])


class TimeBody(BaseModel):
    decode_ms: float | None = Field(description="Null if no image was sent.", examples=[3.1])
    embed_ms: float | None = Field(description="With the wait for a batch.", examples=[21.7])
    search_ms: float = Field(examples=[0.6])
    total_ms: float = Field(examples=[25.9])


class SearchBody(BaseModel):
    hits: list[HitBody] = Field(description="The hits, the nearest first.")
    count: int = Field(description="The number of these hits.", examples=[1])
    time: TimeBody


@router.post(
    "/search",
    summary="Find the items that look like an image",
    response_model=SearchBody,
    responses=documented("not_found", *IMAGE_CODES),
    openapi_extra=image_body(SearchOptions, {"id": "3f2a", "k": 5}, without=("id", "vector")),
)
async def search(request: Request, _: Annotated[object, Depends(may_read)]) -> JSONResponse:
    """Send an image as the field `image` of a form or as the raw body.

    To search with an item or an embedding instead, send JSON with its `id` or its `vector`.
    """
    began = time.perf_counter()
    service = service_of(request)
    service.admission.check()
    upload = await read(request)
    options = upload.parsed(SearchOptions)
    chosen = parse(options.filter)
    async with service.live.use() as serving:
        found = await while_connected(request, _search(service, serving, upload, options, chosen))
    found["time"]["total_ms"] = _ms(time.perf_counter() - began)
    return JSONResponse(found)


async def _search(
    service: Service,
    serving: Serving,
    upload: Upload,
    options: SearchOptions,
    chosen: Filter | None,
) -> dict[str, Any]:
    given = [bool(upload.images), options.id is not None, options.vector is not None]
    if sum(given) != 1:
        raise Problem(
            "bad_request", "search with exactly one of an image, an item's id and a vector"
        )
    decoded = embedded = None
    if upload.images:
        service.admission.check()
        row, decoded, embedded = await service.embed(serving, upload.image())
    elif options.id is not None:
        row = await serving.ask(vector_of, serving.index, options.id)
    else:
        row = _given(options.vector or [], serving)
    began = time.perf_counter()
    if options.id is None and options.group_by is None:
        wanted = Wanted(options.k, options.offset, chosen)
        hits = _above(await serving.search_batcher.hits(row, wanted), options.min_score)
    else:
        hits = await serving.ask(_looked_through, serving.index, row, options, chosen)
    took = time.perf_counter() - began
    service.prometheus.stages.labels("search").observe(took)
    return {
        "hits": [hit_body(hit) for hit in hits],
        "count": len(hits),
        "time": {"decode_ms": _ms(decoded), "embed_ms": _ms(embedded), "search_ms": _ms(took)},
    }


def _looked_through(
    index: Index, row: Row, options: SearchOptions, chosen: Filter | None
) -> list[Hit]:
    """The hits of a search in which some hits do not count.

    It searches for more and more hits until enough of them count.
    """
    wanted = options.k + options.offset
    depth = wanted + 1 if options.group_by is None else 4 * wanted
    while True:
        (found,) = index.search([row], min(depth, _DEEPEST), chosen)
        hits = [hit for hit in _above(found, options.min_score) if hit.id != options.id]
        if options.group_by is not None:
            hits = _best_of_each(hits)
        if len(hits) >= wanted or len(found) < depth or depth >= _DEEPEST:
            return hits[options.offset : wanted]
        depth *= 4


def _above(hits: list[Hit], least: float | None) -> list[Hit]:
    return hits if least is None else [hit for hit in hits if hit.score >= least]


def _best_of_each(hits: list[Hit]) -> list[Hit]:
    """The first hit of each label. Every hit without a label is kept."""
    seen: dict[tuple[str, str | None], Hit] = {}
    for hit in hits:
        seen.setdefault(("label", hit.item.label) if hit.item.label else ("id", hit.id), hit)
    return list(seen.values())


def vector_of(index: Index, id: str) -> Row:
    """The embedding of an item."""
    for block in index.vectors([id]):
        return block.vectors[0]
    raise Problem("not_found", f"there is no item {id[:60]!r}")


def _given(vector: list[float], serving: Serving) -> Row:
    """A vector of the request, scaled to unit length."""
    try:
        row: Row = unit_rows([vector], serving.embedder.dim)[0]
    except CouceError as error:
        raise Problem("invalid", f"vector: {error}") from None
    return row


def hit_body(hit: Hit) -> dict[str, Any]:
    return {
        "id": hit.id,
        "score": round(hit.score, 6),
        "label": hit.item.label,
        "metadata": dict(hit.item.metadata),
        "image": image_address(hit.id),
    }


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(1000 * seconds, 2)
