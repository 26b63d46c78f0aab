"""What a request brings: images and options, as a form, as a raw body, or as JSON.

Options stand in the address, beside the image in the form, or in the JSON; all three mean the same.
"""

import json
from dataclasses import dataclass, field
from typing import Any, TypeVar

from fastapi import Request
from pydantic import BaseModel, ConfigDict
from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from couce.server.http.problems import Problem

_FIELDS = 32
_FIELD_BYTES = 65_536
_JSON_BYTES = 4 * 2**20  # the longest vector and all filters
# curl --data-binary calls everything the second.
_RAW = ("application/octet-stream", "application/x-www-form-urlencoded", "")

_O = TypeVar("_O", bound="Options")


class Options(BaseModel):
    """Options of a request. Unknown ones are errors."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


def all_of(value: object, kinds: tuple[type, ...], name: str) -> object:
    """Refuses a list with anything else in it, in a sentence: pydantic would write one for each."""
    if isinstance(value, list) and not all(isinstance(each, kinds) for each in value):
        raise ValueError(f"these are {name} alone")
    return value


@dataclass
class Upload:
    images: list[bytes] = field(default_factory=list)
    options: dict[str, Any] = field(default_factory=dict)

    def parsed(self, kind: type[_O]) -> _O:
        known = kind.model_fields
        for name in self.options:
            if name not in known:
                raise Problem(
                    "invalid", f"there is no option {name[:60]!r}; known: {', '.join(known)}"
                )
        return kind.model_validate(self.options)

    def image(self) -> bytes:
        if len(self.images) != 1:
            raise Problem("bad_request", f"send one image, not {len(self.images)}")
        return self.images[0]


async def read(request: Request, max_images: int = 1, json_body: bool = True) -> Upload:
    """The whole request, in memory."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    upload = Upload()
    for name in request.query_params:
        _put_texts(upload, name, request.query_params.getlist(name))
    if kind == "multipart/form-data":
        await _read_form(request, upload, max_images)
    elif kind == "application/json" and json_body:
        for name, value in (await read_json(request, _JSON_BYTES)).items():
            _put(upload, name, value)
    elif kind in _RAW or kind.startswith("image/"):
        if body := await request.body():
            upload.images.append(body)
    else:
        taken = "a form with the field image, the image itself" + (", or JSON" if json_body else "")
        raise Problem("unsupported_type", f"this address takes {taken}, not {kind[:60]!r}")
    return upload


async def read_json(request: Request, limit: int | None = None) -> dict[str, Any]:
    """The body as a JSON object. Its ``limit`` in bytes, since what it says takes many times that memory."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if limit is not None and len(body) > limit:
            raise Problem("too_large", f"JSON has {limit} bytes at most here")
    try:
        found = json.loads(body.decode())  # left to itself it would take half characters and UTF-16
        if b"\\u" in body:  # half of a character can be written so, and nothing can keep it
            json.dumps(found, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        raise Problem("bad_request", "the body is not JSON") from None
    if not isinstance(found, dict):
        raise Problem("bad_request", "the body is not a JSON object")
    return found


class FormParser(MultiPartParser):
    """Starlette's, with texts in UTF-8 alone: it takes any codec of Python's for them, and guesses."""

    def on_part_end(self) -> None:
        if self._current_part.file is None:
            _decoded(bytes(self._current_part.data))
        super().on_part_end()

    def on_headers_finished(self) -> None:
        _decoded(self._current_part.content_disposition or b"")
        self._charset = "utf-8"
        super().on_headers_finished()

    async def form(self) -> FormData:
        try:
            return await self.parse()
        except MultiPartException as error:
            raise Problem("bad_request", f"the form cannot be read: {error.message}") from None


def _decoded(text: bytes) -> str:
    try:
        return text.decode()
    except UnicodeDecodeError:
        raise MultiPartException("a text in it is not UTF-8.") from None


class _InMemory(FormParser):
    """The gate limits how much there can be, so none of it goes to a temporary file."""

    spool_max_size = 2**62


async def _read_form(request: Request, upload: Upload, max_images: int) -> None:
    parser = _InMemory(
        request.headers,
        request.stream(),
        max_files=max_images,
        max_fields=_FIELDS,
        max_part_size=_FIELD_BYTES,
    )
    form = await parser.form()
    try:
        for name in form:
            values = form.getlist(name)
            files = [each for each in values if isinstance(each, UploadFile)]
            if name == "image" and len(files) == len(values):
                upload.images += [await each.read() for each in files]
            elif files or name == "image":
                raise Problem("bad_request", "the form's one file is its field image")
            else:
                _put_texts(upload, name, [str(each) for each in values])
    finally:
        await form.close()


def _put_texts(upload: Upload, name: str, values: list[str]) -> None:
    """Of an address or a form; only a filter may have several."""
    if name != "filter" and len(values) != 1:
        raise Problem("invalid", f"{name[:60]!r} is given twice")
    _put(upload, name, values if name == "filter" else values[0])


def _put(upload: Upload, name: str, value: Any) -> None:
    if name in upload.options:
        raise Problem("invalid", f"{name[:60]!r} is given twice")
    upload.options[name] = value
