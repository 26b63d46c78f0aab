"""Reads what a request brings: images and options, as a form, as a raw body, or as JSON.

Options are in the address, beside the image in the form, or in the JSON. All three mean the same.
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
_JSON_BYTES = 4 * 2**20  # enough for the longest vector and all filters
# curl --data-binary declares the second type, whatever the file is.
_RAW = ("application/octet-stream", "application/x-www-form-urlencoded", "")

_O = TypeVar("_O", bound="Options")


class Options(BaseModel):
    """The options of a request. Unknown ones are errors."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


def all_of(value: object, kinds: tuple[type, ...], name: str) -> object:
    """Refuses a list that has anything but ``kinds``, in one sentence.

    Pydantic would write a sentence for each wrong element.
    """
    if isinstance(value, list) and not all(isinstance(each, kinds) for each in value):
        raise ValueError(f"only {name} are allowed here")
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
    """Reads the whole request into memory."""
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
        taken = "a form with the field image, or the image itself"
        taken += ", or JSON" if json_body else ""
        raise Problem("unsupported_type", f"this address takes {taken}, not {kind[:60]!r}")
    return upload


async def read_json(request: Request, limit: int | None = None) -> dict[str, Any]:
    """The body as a JSON object of at most ``limit`` bytes.

    There is a limit because parsed JSON takes many times the memory of its text.
    """
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if limit is not None and len(body) > limit:
            raise Problem("too_large", f"the JSON may have at most {limit} bytes here")
    try:
        # Decoded first, because json.loads alone would accept UTF-16 and halves of characters.
        found = json.loads(body.decode())
        # An escape can still stand for half a character, which cannot be stored.
        if b"\\u" in body:
            json.dumps(found, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        raise Problem("bad_request", "the body is not JSON") from None
    if not isinstance(found, dict):
        raise Problem("bad_request", "the body is not a JSON object")
    return found


class FormParser(MultiPartParser):
    """Starlette's parser, but all texts are UTF-8.

    Starlette itself accepts any codec of Python for them, and guesses one.
    """

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
    """Uses no temporary files. The middleware limits how much there can be."""

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
                raise Problem(
                    "bad_request", "the field image must be a file, and no other field may be one"
                )
            else:
                _put_texts(upload, name, [str(each) for each in values])
    finally:
        await form.close()


def _put_texts(upload: Upload, name: str, values: list[str]) -> None:
    """Stores an option of an address or a form. Only a filter may have several values."""
    if name != "filter" and len(values) != 1:
        raise Problem("invalid", f"{name[:60]!r} is given twice")
    _put(upload, name, values if name == "filter" else values[0])


def _put(upload: Upload, name: str, value: Any) -> None:
    if name in upload.options:
        raise Problem("invalid", f"{name[:60]!r} is given twice")
    upload.options[name] = value
