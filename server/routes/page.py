"""The web page. Its files are in the package and are read once."""

import hashlib
from importlib.resources import files

from fastapi import APIRouter, Request
from starlette.responses import Response

from couce.server.http.problems import Problem

_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
_CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:;"
    " media-src 'self' blob:; connect-src 'self'; form-action 'none'; base-uri 'none';"
    " frame-ancestors 'none'"
)


def page_router() -> APIRouter:
    router = APIRouter(include_in_schema=False)
    pages = {
        path.name: path.read_bytes()
        for path in files("couce.server").joinpath("page").iterdir()
        if path.name.rpartition(".")[2] in _TYPES
    }

    def serve(request: Request, name: str) -> Response:
        if name not in pages:
            raise Problem("not_found", "the web page has no file of this name")
        tag = f'"{hashlib.sha256(pages[name]).hexdigest()[:32]}"'
        headers = {
            "Content-Security-Policy": _CSP,
            "Permissions-Policy": "camera=(self)",
            "Cache-Control": "no-cache",
            "ETag": tag,
        }
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        kind = _TYPES[name.rpartition(".")[2]]
        return Response(pages[name], media_type=kind, headers=headers)

    @router.get("/")
    async def index(request: Request) -> Response:
        return serve(request, "index.html")

    @router.get("/page/{name}")
    async def file(request: Request, name: str) -> Response:
        return serve(request, name)

    return router
