"""Errors as clients see them: problem+json (RFC 9457) with codes that never change."""

import json
import logging
from collections.abc import Mapping
from typing import Any

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, Field, ValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from couce.errors import CouceError, StorageError

log = logging.getLogger("couce.server")

MEDIA_TYPE = "application/problem+json"

# Each code with its status and its title.
CODES: dict[str, tuple[int, str]] = {
    "bad_request": (400, "The request cannot be read"),
    "unauthorized": (401, "A key is needed"),
    "forbidden": (403, "This is not allowed"),
    "not_found": (404, "There is no such thing"),
    "method_not_allowed": (405, "This address takes other methods"),
    "read_timeout": (408, "The request did not arrive in time"),
    "conflict": (409, "The change was refused"),
    "too_large": (413, "The request is too large"),
    "unsupported_type": (415, "This type of content is not accepted"),
    "bad_image": (422, "The image cannot be used"),
    "decode_timeout": (422, "The image takes too long to decode"),
    "invalid": (422, "An option or value cannot be used"),
    "rate_limited": (429, "Too many requests with this key"),
    "overloaded": (429, "The server is busy"),
    "internal": (500, "The server failed"),
    "unavailable": (503, "The server is not ready"),
}
_MOST_FAULTS = 3  # most faults of a request that an error names
# The codes of requests that bring an image.
IMAGE_CODES = (
    "bad_request",
    "unauthorized",
    "forbidden",
    "read_timeout",
    "too_large",
    "unsupported_type",
    "bad_image",
    "decode_timeout",
    "invalid",
    "overloaded",
    "rate_limited",
    "unavailable",
)
_BY_STATUS = {status: code for code, (status, _) in reversed(CODES.items())}


class Problem(Exception):
    """Ends a request with a code of ``CODES`` and a sentence for people."""

    def __init__(self, code: str, detail: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(detail)
        self.code, self.detail, self.headers = code, detail, dict(headers or {})


class ProblemBody(BaseModel):
    """The body of every error."""

    type: str = "about:blank"
    title: str = Field(examples=["The image cannot be used"])
    status: int = Field(examples=[422])
    code: str = Field(examples=["bad_image"], description="Stays the same between versions.")
    detail: str = Field(examples=["the image is not an image in a known format"])
    request_id: str


_EXAMPLE = {
    "type": "about:blank",
    "detail": "a sentence for people that says what is wrong",
    "request_id": "5266a3f9083fc94c",
}


def documented(*codes: str) -> dict[int | str, dict[str, Any]]:
    """The ``responses`` of a route that may end with these codes."""
    found: dict[int | str, dict[str, Any]] = {}
    for code in codes:
        status, title = CODES[code]
        known = found.get(status)
        description = f"{known['description']}; {code}" if known else f"{title}: {code}"
        example = {**_EXAMPLE, "title": title, "status": status, "code": code}
        examples = {**known["content"][MEDIA_TYPE]["examples"]} if known else {}
        schema = {"$ref": "#/components/schemas/ProblemBody"}
        content = {"schema": schema, "examples": {**examples, code: {"value": example}}}
        found[status] = {"description": description, "content": {MEDIA_TYPE: content}}
    return found


def respond(request_id: str, problem: Problem, path: str) -> Response:
    status, title = CODES[problem.code]
    body: dict[str, Any] = {
        "type": "about:blank",
        "title": title,
        "status": status,
        "code": problem.code,
        "detail": problem.detail,
        "request_id": request_id,
    }
    if path.startswith("/v1/"):  # clients of OpenAI's API look for the error here
        kind = "invalid_request_error" if status < 500 else "server_error"
        body["error"] = {"message": problem.detail, "type": kind, "code": problem.code}
    headers = dict(problem.headers)
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return JSONResponse(body, status, headers, MEDIA_TYPE)


def as_problem(error: Exception) -> Problem:
    """The problem that stands for an error of a handler."""
    if isinstance(error, Problem):
        return error
    if isinstance(error, ValidationError | RequestValidationError):
        return Problem("invalid", sentence(error))
    if isinstance(error, HTTPException):
        code = _BY_STATUS.get(error.status_code, "bad_request")
        details = {
            "not_found": "there is nothing at this address",
            "method_not_allowed": "this address takes other methods",
        }
        return Problem(code, details.get(code, str(error.detail)), error.headers)
    if isinstance(error, StorageError | OSError):
        return Problem(
            "unavailable",
            "the server cannot read or write its data; its log has the reason",
            {"Retry-After": "10"},
        )
    if isinstance(error, CouceError):
        return Problem("invalid", str(error))
    return Problem(
        "internal", "the server failed; its log has the reason, under the id of this request"
    )


def sentence(error: ValidationError | RequestValidationError) -> str:
    """Says which values are wrong, and why."""
    found = []
    for each in error.errors()[:_MOST_FAULTS]:
        name = ".".join(str(part) for part in each["loc"] if part not in ("query", "body", "path"))
        found.append(f"{name}: {each['msg'].lower()}" if name else each["msg"])
    return "; ".join(found)


async def handle(request: Request, error: Exception) -> Response:
    if isinstance(error, StorageError | OSError):
        log.error(json.dumps({"event": "storage", "id": request.state.id, "reason": str(error)}))
    return respond(request.state.id, as_problem(error), request.url.path)
