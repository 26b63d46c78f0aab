"""POST /embed, and the same in the form of OpenAI's API."""

import asyncio
import base64
import binascii
import re
from collections.abc import Sequence
from io import BytesIO
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import APIRouter, Depends, Request
from numpy.typing import NDArray
from pydantic import BaseModel, Field, field_validator
from starlette.responses import JSONResponse, Response

from couce.server.auth import may_read
from couce.server.http.problems import IMAGE_CODES, Problem, documented
from couce.server.http.schema import image_body
from couce.server.http.uploads import Options, all_of, read, read_json
from couce.server.routes.common import Service, service_of, while_connected
from couce.server.serving import Serving

NPY = "application/x-npy"
_AT_ONCE = 8  # images of one request that are processed at once, so that other requests get a turn
_DATA_URI = re.compile(r"data:[\w.+-]+/[\w.+-]+;base64,")

router = APIRouter()


class EmbedOptions(Options):
    pass


class EmbedBody(BaseModel):
    embeddings: list[list[float]] = Field(
        description="The embeddings, of unit length.", examples=[[[0.6, -0.8]]]
    )
    dim: int = Field(examples=[2])
    model: str = Field(description="sha256 of the model.", examples=["9f86d081884c7d65..."])


class OpenAIRequest(Options):
    input: str | list[str] = Field(
        description="One image or several, as data:image/jpeg;base64,..."
    )
    model: str = Field("couce", description="Any name, because the server has one model.")
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = Field(
        None, description="Only the dimension of the model itself is allowed."
    )
    user: str | None = None

    @field_validator("input", mode="before")
    @classmethod
    def _of_texts(cls, value: object) -> object:
        return all_of(value, (str,), "texts")


class OpenAIRow(BaseModel):
    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class OpenAIUsage(BaseModel):
    prompt_tokens: int = Field(description="Always 0, because images have no tokens.", examples=[0])
    total_tokens: int = Field(examples=[0])


class OpenAIBody(BaseModel):
    object: Literal["list"]
    data: list[OpenAIRow]
    model: str
    usage: OpenAIUsage


@router.post(
    "/embed",
    summary="Embed one image or several",
    response_model=EmbedBody,
    responses={
        **documented(*IMAGE_CODES),
        200: {"content": {NPY: {"schema": {"type": "string", "format": "binary"}}}},
    },
    openapi_extra=image_body(EmbedOptions, several=True),
)
async def embed(request: Request, _: Annotated[object, Depends(may_read)]) -> Response:
    """Send images as fields `image` of a form, or one image as the raw body.

    With the header `Accept: application/x-npy` the answer is a float32 array as an npy file.
    """
    service = service_of(request)
    service.admission.check()
    upload = await read(request, service.settings.max_images, json_body=False)
    upload.parsed(EmbedOptions)
    async with service.live.use() as serving:
        rows = await while_connected(request, embed_all(service, serving, upload.images))
        if NPY in request.headers.get("accept", ""):
            file = BytesIO()
            np.save(file, rows)
            return Response(file.getvalue(), media_type=NPY)
        return JSONResponse(
            {
                "embeddings": rows.tolist(),
                "dim": serving.embedder.dim,
                "model": serving.embedder.hash,
            }
        )


@router.post(
    "/v1/embeddings",
    summary="Embed images in the form of OpenAI's API",
    response_model=OpenAIBody,
    responses=documented(*IMAGE_CODES),
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {
                    "schema": OpenAIRequest.model_json_schema(),
                    "example": {"model": "couce", "input": ["data:image/png;base64,iVBORw0KGgo="]},
                }
            },
        }
    },
)
async def openai_embeddings(
    request: Request, _: Annotated[object, Depends(may_read)]
) -> JSONResponse:
    """Send images as data URIs, so that existing clients work. The server fetches no addresses."""
    service = service_of(request)
    service.admission.check()
    asked = OpenAIRequest.model_validate(await read_json(request))
    texts = [asked.input] if isinstance(asked.input, str) else asked.input
    if len(texts) > service.settings.max_images:
        raise Problem("invalid", f"input: send at most {service.settings.max_images} images")
    images = [_image(text) for text in texts]
    async with service.live.use() as serving:
        if asked.dimensions not in (None, serving.embedder.dim):
            raise Problem(
                "invalid",
                f"dimensions: this model has {serving.embedder.dim}; leave the option out",
            )
        rows = await while_connected(request, embed_all(service, serving, images))
    encode = _base64 if asked.encoding_format == "base64" else list
    data = [
        {"object": "embedding", "index": place, "embedding": encode(row.tolist())}
        for place, row in enumerate(rows)
    ]
    usage = {"prompt_tokens": 0, "total_tokens": 0}
    return JSONResponse({"object": "list", "data": data, "model": asked.model, "usage": usage})


async def embed_all(
    service: Service, serving: Serving, images: Sequence[bytes]
) -> NDArray[np.float32]:
    """The embeddings (n, d) of all images. The first error of an image is raised."""
    if not images:
        raise Problem("bad_request", "send an image")
    service.admission.check()
    turn = asyncio.Semaphore(_AT_ONCE)

    async def one(image: bytes) -> NDArray[np.float32]:
        async with turn:
            return (await service.embed(serving, image)).row

    tasks = [asyncio.ensure_future(one(image)) for image in images]
    try:
        return np.stack(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()


def _image(text: str) -> bytes:
    found = _DATA_URI.match(text)
    if found is None:
        raise Problem("invalid", "input: send images as data URIs, data:image/jpeg;base64,...")
    try:
        return base64.b64decode(text[found.end() :], validate=True)
    except (binascii.Error, ValueError):
        raise Problem(
            "invalid", "input: the data URI is not base64; encode the image again"
        ) from None


def _base64(row: list[float]) -> Any:
    return base64.b64encode(np.asarray(row, "<f4").tobytes()).decode()
