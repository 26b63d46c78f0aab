"""Shows whether the server works, what it serves and what it measured, and reloads its files."""

import json
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Request
from pydantic import BaseModel, Field
from starlette.responses import JSONResponse, Response

from couce import __version__
from couce.errors import CouceError
from couce.server.auth import may_administer, may_read
from couce.server.http.problems import Problem, documented
from couce.server.prometheus import CONTENT_TYPE
from couce.server.routes.common import MAX_K, READING, Service, service_of
from couce.server.serving import Serving

router = APIRouter()


class AliveBody(BaseModel):
    status: Literal["alive"]


class ReadyBody(BaseModel):
    status: Literal["ready"]


class InfoBody(BaseModel):
    couce: str = Field(description="The version of CouCE.", examples=[__version__])
    model: dict[str, Any] = Field(examples=[{"hash": "9f86d081884c7d65...", "dim": 512}])
    certificate: dict[str, Any] | None = Field(description="What `couce export --certify` found.")
    index: dict[str, Any] = Field(examples=[{"backend": "folder", "items": 11_788}])
    keys: Literal["required", "off"]
    read_only: bool
    limits: dict[str, int] = Field(examples=[{"body_bytes": 20_971_520, "k": 1000}])


class ReloadBody(BaseModel):
    model: str = Field(
        description="The sha256 of the model that answers from now on.",
        examples=["9f86d081884c7d65..."],
    )
    items: int = Field(examples=[11_788])


@router.get(
    "/healthz",
    summary="Check that the process runs",
    response_model=AliveBody,
    responses=documented("forbidden"),
)
async def healthz() -> JSONResponse:
    return JSONResponse({"status": "alive"})


@router.get(
    "/readyz",
    summary="Check that the server can answer searches",
    response_model=ReadyBody,
    responses=documented("forbidden", "unavailable"),
)
async def readyz(request: Request) -> JSONResponse:
    async with service_of(request).live.use() as serving:
        await serving.ask(len, serving.index)
    return JSONResponse({"status": "ready"})


@router.get(
    "/metrics",
    summary="Show the measurements for Prometheus",
    response_class=Response,
    responses={
        200: {"content": {"text/plain": {"schema": {"type": "string"}}}},
        **documented(*READING),
    },
)
async def metrics(request: Request, _: Annotated[object, Depends(may_read)]) -> Response:
    return Response(service_of(request).prometheus.text(), media_type=CONTENT_TYPE)


@router.get(
    "/info",
    summary="Show model, certificate, index and limits",
    response_model=InfoBody,
    responses=documented(*READING),
)
async def info(request: Request, _: Annotated[object, Depends(may_read)]) -> JSONResponse:
    service = service_of(request)
    async with service.live.use() as serving:
        index = await serving.ask(serving.index.info)
        model = _model(serving)
    settings = service.settings
    service.prometheus.items.set(index["items"])
    return JSONResponse(
        {
            "couce": __version__,
            "model": model,
            "certificate": _certificate(settings.model, model["hash"]),
            # Clients must not learn where the index is on the disk.
            "index": {name: value for name, value in index.items() if name != "address"},
            "keys": "required" if service.auth.needed else "off",
            "read_only": settings.read_only,
            "limits": _limits(service),
        }
    )


@router.post(
    "/admin/reload",
    summary="Load model and index again",
    response_model=ReloadBody,
    responses=documented("conflict", *READING),
)
async def reload(request: Request, _: Annotated[object, Depends(may_administer)]) -> JSONResponse:
    """The old ones answer until the new ones are checked, and stay if the new ones have a fault.

    Other processes that share the state folder reload within seconds, too.
    """
    service = service_of(request)
    try:
        await service.live.reload()
    except CouceError as error:
        raise Problem("conflict", f"the old model and index stay in use: {error}") from None
    # Another reload may have replaced the new ones in the meantime.
    async with service.live.use() as serving:
        items = await serving.ask(len, serving.index)
        return JSONResponse({"model": serving.embedder.hash, "items": items})


def _model(serving: Serving) -> dict[str, Any]:
    embedder = serving.embedder
    described: dict[str, Any] = {}
    if embedder.info is not None:
        kept = ("precision", "backbone", "dataset", "metrics", "licence", "weights")
        described = {name: getattr(embedder.info, name) for name in kept}
    return {
        "hash": embedder.hash,
        "dim": embedder.dim,
        "provider": embedder.provider,
        "crop": embedder.preprocess.crop,
        **described,
    }


def _certificate(model: Path, digest: str) -> dict[str, Any] | None:
    """The certificate that `couce export --certify` wrote, if it is about this model file."""
    try:
        found = json.loads(model.with_suffix(".certificate.json").read_text())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and digest in found.values() else None


def _limits(service: Service) -> dict[str, int]:
    settings = service.settings
    return {
        "body_bytes": settings.max_bytes,
        "upload_bytes": settings.max_upload_bytes,
        "pixels": settings.max_pixels,
        "k": MAX_K,
        "images": settings.max_images,
    }
