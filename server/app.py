"""The application: everything is opened when it starts and closed when it stops."""

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware

from couce import __version__
from couce.cores import usable_cores
from couce.errors import CouceError
from couce.server import embeddings, evaluate, items, search, status
from couce.server.admission import Admission
from couce.server.decoding import Decoder
from couce.server.engine import Engines
from couce.server.gate import Gate
from couce.server.jobs import Jobs
from couce.server.keys import Keys, Rates
from couce.server.measures import Measures
from couce.server.pictures import Pictures
from couce.server.problems import Problem, ProblemBody, handle
from couce.server.schema import with_headers
from couce.server.service import Service
from couce.server.settings import ServerSettings
from couce.server.web import page_router

log = logging.getLogger("couce.server")


def create_app(
    settings: ServerSettings | None = None,
    ready: Callable[[], None] = lambda: None,
    failed: Callable[[Exception], None] = lambda _: None,
) -> FastAPI:
    """The server as an ASGI application. ``ready`` is called once it can answer, ``failed`` if it cannot."""
    chosen = settings or ServerSettings()
    measures = Measures()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        try:
            service = await _open(chosen, measures)
        except Exception as error:
            failed(error)
            raise
        app.state.service = service
        ready()
        yield
        await service.engines.close()
        await service.decoder.close()
        measures.close()

    app = FastAPI(
        title="CouCE",
        version=__version__,
        summary="Image retrieval that looks at the object, not at its background.",
        lifespan=lifespan,
        docs_url=None,  # they would load scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,
    )
    invalid = (RequestValidationError, ValidationError)
    for kind in (Problem, CouceError, OSError, HTTPException, *invalid):
        app.add_exception_handler(kind, handle)
    for module in (search, embeddings, items, evaluate, status):
        app.include_router(module.router)
    app.include_router(page_router())
    if chosen.origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(chosen.origins),
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["Authorization", "Content-Type", "X-Request-Id"],
            expose_headers=["X-Request-Id", "Retry-After", "Location"],
        )
    app.add_middleware(Gate, settings=chosen, measures=measures)
    app.openapi = lambda: _described(app)  # type: ignore[method-assign]
    return app


async def _open(settings: ServerSettings, measures: Measures) -> Service:
    keys = Keys.in_folder(settings.state_folder)
    refuse_open_door(settings, keys)
    state = settings.state_folder
    decoder = Decoder(
        max(1, usable_cores() // settings.workers), settings.decode_seconds, settings.pixels
    )
    engines = Engines(settings, measures, log.warning)
    try:
        await engines.start()
    except BaseException:
        await decoder.close()
        raise
    return Service(
        settings=settings,
        measures=measures,
        engines=engines,
        decoder=decoder,
        admission=Admission(settings.queue, measures),
        keys=keys,
        rates=Rates(),
        jobs=Jobs(state / "evaluations", settings),
        pictures=Pictures(state / "images", decoder),
    )


def refuse_open_door(settings: ServerSettings, keys: Keys) -> None:
    """Whoever can be reached from elsewhere wants keys, unless told not to."""
    wanted = settings.authentication
    needed = wanted == "required" or (wanted == "auto" and not settings.local)
    if needed and not keys.all():
        raise CouceError(
            f"a server at {settings.host} wants keys, and there is none yet; make one with `couce key new"
            f" NAME --role admin --state {settings.state_folder}`, or serve everyone with --keys off"
        )


def _described(app: FastAPI) -> dict[str, object]:
    """FastAPI's own, without the error that it documents and we never send, and with ours."""
    if app.openapi_schema is None:
        schema = get_openapi(
            title=app.title, version=app.version, summary=app.summary, routes=app.routes
        )
        for path in schema["paths"].values():
            for operation in path.values():  # an address's text, which cannot be wrong
                if "HTTPValidationError" in str(operation["responses"].get("422")):
                    del operation["responses"]["422"]
        schemas = schema["components"]["schemas"]
        for name in ("HTTPValidationError", "ValidationError"):
            schemas.pop(name, None)
        schemas["ProblemBody"] = ProblemBody.model_json_schema()
        app.openapi_schema = with_headers(schema)
    return app.openapi_schema
