"""The application. It opens model and index when it starts, and closes them when it stops."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware

from couce import __version__
from couce.errors import CouceError
from couce.machine.cores import usable_cores
from couce.server.admission import Admission
from couce.server.auth import Auth, refuse_open_door
from couce.server.decoding import Decoder
from couce.server.http.middleware import RequestMiddleware
from couce.server.http.problems import Problem, ProblemBody, handle
from couce.server.http.schema import with_headers
from couce.server.item_images import ItemImages
from couce.server.jobs.queue import Jobs
from couce.server.prometheus import Prometheus
from couce.server.routes import embeddings, evaluate, items, search, status
from couce.server.routes.common import Service
from couce.server.routes.page import page_router
from couce.server.serving import LiveServing
from couce.server.settings import ServerSettings


def create_app(
    settings: ServerSettings | None = None,
    ready: Callable[[], None] = lambda: None,
    failed: Callable[[Exception], None] = lambda _: None,
) -> FastAPI:
    """The server as an ASGI application.

    ``ready`` is called once the server can answer, ``failed`` if it cannot start.
    """
    chosen = settings or ServerSettings()
    prometheus = Prometheus()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        try:
            service = await _open(chosen, prometheus)
        except Exception as error:
            failed(error)
            raise
        app.state.service = service
        ready()
        yield
        await service.live.close()
        await service.decoder.close()
        prometheus.close()

    app = FastAPI(
        title="CouCE",
        version=__version__,
        summary="Image retrieval that looks at the object, not at its background.",
        lifespan=lifespan,
        # FastAPI's own pages would load scripts from other sites.
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    invalid = (RequestValidationError, ValidationError)
    for kind in (Problem, CouceError, OSError, HTTPException, *invalid):
        app.add_exception_handler(kind, handle)
    for module in (search, embeddings, items, evaluate, status):
        app.include_router(module.router)
    app.include_router(page_router())
    if chosen.origin:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(chosen.origin),
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["Authorization", "Content-Type", "X-Request-Id"],
            expose_headers=["X-Request-Id", "Retry-After", "Location"],
        )
    app.add_middleware(RequestMiddleware, settings=chosen, prometheus=prometheus)
    app.openapi = lambda: _described(app)  # type: ignore[method-assign]
    return app


async def _open(settings: ServerSettings, prometheus: Prometheus) -> Service:
    refuse_open_door(settings)
    state = settings.state_folder
    decoder = Decoder(
        max(1, usable_cores() // settings.workers), settings.decode_seconds, settings.max_pixels
    )
    live = LiveServing(settings, prometheus)
    try:
        await live.start()
    except BaseException:
        await decoder.close()
        raise
    return Service(
        settings=settings,
        prometheus=prometheus,
        live=live,
        decoder=decoder,
        admission=Admission(settings.queue, prometheus),
        auth=Auth(settings, prometheus),
        jobs=Jobs(state / "evaluations", settings),
        item_images=ItemImages(state / "images", decoder),
    )


def _described(app: FastAPI) -> dict[str, object]:
    """FastAPI's description, with our error body in place of FastAPI's validation error."""
    if app.openapi_schema is None:
        schema = get_openapi(
            title=app.title, version=app.version, summary=app.summary, routes=app.routes
        )
        for path in schema["paths"].values():
            for operation in path.values():
                # FastAPI adds this answer wherever there are parameters. Routes that can answer 422
                # document it themselves. The others only take an id, for which any text is valid.
                if "HTTPValidationError" in str(operation["responses"].get("422")):
                    del operation["responses"]["422"]
        schemas = schema["components"]["schemas"]
        for name in ("HTTPValidationError", "ValidationError"):
            schemas.pop(name, None)
        schemas["ProblemBody"] = ProblemBody.model_json_schema()
        app.openapi_schema = with_headers(schema)
    return app.openapi_schema
