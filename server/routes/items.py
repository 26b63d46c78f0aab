"""Adds, shows and removes items of the gallery.

A change is on the disk before it is answered with a 2xx status.
"""

import hashlib
import json
from dataclasses import replace
from pathlib import Path as File
from typing import Annotated, Any
from urllib.parse import unquote

from fastapi import APIRouter, Depends, Path, Query, Request
from pydantic import BaseModel, Field, field_validator
from starlette.responses import JSONResponse, Response

from couce.index import Index, Item, NewItem
from couce.index.base import ID_DIGITS, check_text
from couce.index.filters import parse
from couce.server.auth import may_change, may_read
from couce.server.http.problems import Problem, documented
from couce.server.http.schema import FILTERS, image_body
from couce.server.http.uploads import Options, read
from couce.server.image_batcher import Row
from couce.server.item_images import ItemImages
from couce.server.routes.common import READING, image_address, service_of, while_connected

router = APIRouter()

_Id = Annotated[
    str,
    Path(
        description="The id of an item. In the address, a slash in it is written %2F.",
        examples=["3f2a"],
    ),
]

_READING = ("invalid", *READING)


class ItemOptions(Options):
    id: str | None = Field(
        None,
        min_length=1,
        max_length=512,
        description="The id of the item. [default: a hash of the image]",
    )
    label: str | None = Field(None, max_length=512, examples=["wren"])
    metadata: dict[str, Any] | None = Field(
        None, description="A JSON object.", examples=['{"year": 2024}']
    )

    @field_validator("id")
    @classmethod
    def _in_an_address(cls, value: str | None) -> str | None:
        if value in (".", ".."):
            raise ValueError("browsers remove this id from an address; choose another one")
        return value

    @field_validator("metadata", mode="before")
    @classmethod
    def _from_text(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            raise ValueError('this must be a JSON object, such as {"year": 2024}') from None


class ItemBody(BaseModel):
    id: str = Field(examples=["3f2a"])
    label: str | None = Field(examples=["wren"])
    metadata: dict[str, Any] = Field(examples=[{"year": 2024}])
    image: str = Field(description="The address of its thumbnail.", examples=["/items/3f2a/image"])
    size: int | None = Field(description="The size of the file in bytes.", examples=[48_213])
    sha256: str | None = Field(
        description="The sha256 of the file.", examples=["9f86d081884c7d65..."]
    )
    time: float = Field(
        description="When it was added, in seconds since 1970.", examples=[1_767_225_600.0]
    )


class PageBody(BaseModel):
    items: list[ItemBody]
    offset: int = Field(examples=[0])
    limit: int = Field(examples=[50])
    total: int | None = Field(
        description="The number of items in the gallery; null with a filter.", examples=[11_788]
    )


class LabelsBody(BaseModel):
    labels: dict[str, int] = Field(examples=[{"wren": 12, "robin": 7}])


@router.post(
    "/items",
    summary="Add an image to the gallery",
    status_code=201,
    response_model=ItemBody,
    responses={
        200: {"model": ItemBody, "description": "The item exists already and is now as requested."},
        **documented(
            "bad_request",
            *_READING,
            "read_timeout",
            "too_large",
            "unsupported_type",
            "bad_image",
            "decode_timeout",
            "overloaded",
        ),
    },
    openapi_extra=image_body(ItemOptions),
)
async def add(request: Request, _: Annotated[object, Depends(may_change)]) -> JSONResponse:
    """Send the image as the field `image` of a form, or as the raw body.

    If the item exists with the same image, only the given label and metadata change. If it exists
    with another image, the new image, label and metadata replace the old ones.
    """
    service = service_of(request)
    service.admission.check()
    upload = await read(request, json_body=False)
    options = upload.parsed(ItemOptions)
    image = upload.image()
    async with service.live.use() as serving:
        service.admission.check()
        embedded = await while_connected(request, service.embed(serving, image))
        # From here on the item is added even if the client no longer waits for the answer.
        item, created = await serving.ask(
            _keep, serving.index, service.item_images, embedded.row, image, options
        )
        service.prometheus.items.set(await serving.ask(len, serving.index))
    return JSONResponse(item_body(item), 201 if created else 200)


def _keep(
    index: Index, item_images: ItemImages, row: Row, image: bytes, options: ItemOptions
) -> tuple[Item, bool]:
    """Adds an item. Returns it as it is stored, and whether it is new."""
    digest = hashlib.sha256(image).hexdigest()
    id = options.id or digest[:ID_DIGITS]
    check_text("id", id)
    with item_images.changing(id):
        return _keep_one(index, item_images, row, image, options, id, digest)


def _keep_one(
    index: Index,
    item_images: ItemImages,
    row: Row,
    image: bytes,
    options: ItemOptions,
    id: str,
    digest: str,
) -> tuple[Item, bool]:
    """Like :func:`_keep`, while the item is locked. The image is stored before the item."""
    found = index.get(id)
    # If the id had another image, nothing of the old item is kept.
    known = found if found is not None and found.sha256 == digest else None
    label, metadata = options.label, options.metadata
    if label is None and known is not None:
        label = known.label
    if metadata is None:
        metadata = dict(known.metadata) if known is not None else {}
    new = NewItem(row, id=id, label=label, sha256=digest, size=len(image), metadata=metadata)
    new.item()  # raises an error for values that cannot be stored, before anything is written
    if known is not None and any(File(path).is_file() for path in known.paths):
        new = replace(new, paths=known.paths, stamps=known.stamps)
        if (known.label, known.metadata) == (new.label, new.metadata):
            return known, False
    else:
        new = replace(new, paths=(item_images.keep(id, digest, image),))
    index.add([new])
    item_images.forget(id, new.paths)
    return index.get(id) or new.item(), found is None


@router.get(
    "/items",
    summary="List the items of the gallery",
    response_model=PageBody,
    responses=documented(*_READING),
)
async def page(
    request: Request,
    _: Annotated[object, Depends(may_read)],
    offset: Annotated[int, Query(ge=0, le=2**31)] = 0,
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
    filter: Annotated[
        list[str] | None,
        Query(max_length=64, description="Filters, as for a search.", json_schema_extra=FILTERS),
    ] = None,
) -> JSONResponse:
    """The items come in the order of their ids."""
    chosen = parse(filter or [])
    async with service_of(request).live.use() as serving:
        found = await serving.ask(serving.index.items, offset, limit, chosen)
        total = None if chosen else await serving.ask(len, serving.index)
    items = [item_body(item) for item in found]
    return JSONResponse({"items": items, "offset": offset, "limit": limit, "total": total})


@router.get(
    "/labels",
    summary="List all labels with their numbers of items",
    response_model=LabelsBody,
    responses=documented(*_READING),
)
async def labels(request: Request, _: Annotated[object, Depends(may_read)]) -> JSONResponse:
    async with service_of(request).live.use() as serving:
        return JSONResponse({"labels": await serving.ask(serving.index.labels)})


@router.get(
    "/items/{id}",
    summary="Show an item",
    response_model=ItemBody,
    responses=documented("not_found", *_READING),
)
async def one(request: Request, id: _Id, _: Annotated[object, Depends(may_read)]) -> JSONResponse:
    return JSONResponse(item_body(await _item(request, id)))


@router.get(
    "/items/{id}/image",
    summary="Show the thumbnail of an item",
    response_class=Response,
    responses={
        200: {"content": {"image/jpeg": {"schema": {"type": "string", "format": "binary"}}}},
        304: {"description": "The client already has this thumbnail."},
        **documented("not_found", "bad_image", "decode_timeout", "overloaded", *_READING),
    },
)
async def picture(
    request: Request,
    id: _Id,
    _: Annotated[object, Depends(may_read)],
    size: Annotated[int, Query(ge=16, le=1024, description="Pixels of the longer side.")] = 256,
) -> Response:
    item = await _item(request, id)
    tag = hashlib.sha256(f"{item.id} {item.sha256} {item.time} {size}".encode()).hexdigest()[:32]
    headers = {"ETag": f'"{tag}"', "Cache-Control": "private, max-age=60"}
    if request.headers.get("if-none-match") == f'"{tag}"':
        return Response(status_code=304, headers=headers)
    service = service_of(request)
    content = service.item_images.cached(item, size)
    if content is None:
        service.admission.check()
        with service.admission.image():
            content = await while_connected(request, service.item_images.small(item, size))
    return Response(content, media_type="image/jpeg", headers=headers)


@router.delete(
    "/items/{id}",
    summary="Remove an item",
    status_code=204,
    responses=documented("not_found", *_READING),
)
async def remove(request: Request, id: _Id, _: Annotated[object, Depends(may_change)]) -> Response:
    """The uploaded image is deleted, too. A file of the gallery's own folder stays."""
    service = service_of(request)
    name = _name(id)
    async with service.live.use() as serving:
        if not await serving.ask(_remove, serving.index, service.item_images, name):
            raise _missing(name)
        service.prometheus.items.set(await serving.ask(len, serving.index))
    return Response(status_code=204)


def _remove(index: Index, item_images: ItemImages, id: str) -> bool:
    """Removes an item and its uploaded images. Returns whether the item existed.

    The images are deleted in any case, because an earlier try may have removed the item alone.
    """
    with item_images.changing(id):
        removed = index.remove([id])
        item_images.forget(id)
    return bool(removed)


def _name(id: str) -> str:
    """Decodes an id from the address.

    The middleware leaves it encoded, because an id may contain a slash.
    """
    try:
        return unquote(id, errors="strict")
    except UnicodeDecodeError:
        raise _missing(id) from None


async def _item(request: Request, id: str) -> Item:
    name = _name(id)
    async with service_of(request).live.use() as serving:
        found = await serving.ask(serving.index.get, name)
    if found is None:
        raise _missing(name)
    return found


def _missing(id: str) -> Problem:
    return Problem("not_found", f"there is no item {id[:60]!r}")


def item_body(item: Item) -> dict[str, Any]:
    return {
        "id": item.id,
        "label": item.label,
        "metadata": dict(item.metadata),
        "image": image_address(item.id),
        "size": item.size,
        "sha256": item.sha256,
        "time": item.time,
    }
