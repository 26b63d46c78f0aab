"""Evaluations as jobs: R@1, 2, 4, 8, RP, MAP@R and NMI."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path as File
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Request
from pydantic import BaseModel, Field
from starlette.datastructures import UploadFile
from starlette.responses import JSONResponse

from couce.server.auth import may_read
from couce.server.http.problems import Problem, documented
from couce.server.http.schema import BINARY
from couce.server.http.uploads import FormParser, read_json
from couce.server.jobs.queue import Job, JobFolder, Of
from couce.server.routes.common import READING, service_of

router = APIRouter()

_Id = Annotated[str, Path(description="The id of an evaluation.", examples=["8c1f0e5a2b7d4936"])]

_JSON_BYTES = 1024
_RAW: dict[str, Of] = {"application/zip": "queries", "application/x-npz": "embeddings"}
_TAKEN = ("application/json", "multipart/form-data", *_RAW)


class JobsBody(BaseModel):
    jobs: list[Job] = Field(description="All evaluations, the newest first.")


_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "properties": {"of": {"type": "string", "enum": ["index"]}},
                    "required": ["of"],
                    "additionalProperties": False,
                },
                "example": {"of": "index"},
            },
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "properties": {
                        "queries": {**BINARY, "description": "A zip of images in class folders."},
                        "embeddings": {
                            **BINARY,
                            "description": "An npz with embeddings and labels.",
                        },
                    },
                    "description": "Send one of the two files.",
                    "minProperties": 1,
                    "maxProperties": 1,
                    "additionalProperties": False,
                }
            },
            **{kind: {"schema": BINARY} for kind in _RAW},
        },
    }
}


@router.post(
    "/evaluate",
    summary="Start an evaluation",
    status_code=202,
    response_model=Job,
    responses=documented(
        "bad_request", *READING, "read_timeout", "too_large", "unsupported_type", "overloaded"
    ),
    openapi_extra=_BODY,
)
async def start(request: Request, _: Annotated[object, Depends(may_read)]) -> JSONResponse:
    """Measures how well searches find items of the same label.

    It searches with every labelled item of the index, with a set of labelled images that you send,
    or within embeddings that you send. The evaluation runs in a process of its own at the lowest
    priority. `GET /evaluate/{id}` shows its progress and result.
    """
    jobs = service_of(request).jobs
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in _TAKEN:
        raise Problem(
            "unsupported_type",
            'this address takes the JSON {"of": "index"}, a form with a file, a zip or an npz',
        )
    # The place in the queue is taken before the file arrives, so that no more files arrive than may
    # wait.
    folder = await asyncio.to_thread(jobs.prepare)
    try:
        of = await _receive(request, kind, folder)
        job = await asyncio.to_thread(jobs.start, folder, of)
    except BaseException:
        folder.remove()
        raise
    return JSONResponse(job.model_dump(), 202, {"Location": f"/evaluate/{job.id}"})


async def _receive(request: Request, kind: str, folder: JobFolder) -> Of:
    if kind == "application/json":
        if await read_json(request, _JSON_BYTES) != {"of": "index"}:
            raise Problem(
                "bad_request", 'the JSON must be {"of": "index"}; send your own data as a file'
            )
        return "index"
    if kind == "multipart/form-data":
        return await _from_form(request, folder)
    await _write(request.stream(), folder.input)
    return _RAW[kind]


async def _from_form(request: Request, folder: JobFolder) -> Of:
    """Reads the file of a form. From one megabyte on, it goes to the disk while it arrives."""
    form = await FormParser(request.headers, request.stream(), max_files=1, max_fields=0).form()
    try:
        for of in _RAW.values():
            file = form.get(of)
            if isinstance(file, UploadFile):
                await asyncio.to_thread(_copy, file, folder.input)
                return of
    finally:
        await form.close()
    raise Problem(
        "bad_request", "the form must have one file: queries (a zip) or embeddings (an npz)"
    )


def _copy(file: UploadFile, target: File) -> None:
    with target.open("wb") as out:
        shutil.copyfileobj(file.file, out)


async def _write(chunks: AsyncIterator[bytes], target: File) -> None:
    with target.open("wb") as out:
        async for chunk in chunks:
            await asyncio.to_thread(out.write, chunk)


@router.get(
    "/evaluate",
    summary="List all evaluations, the newest first",
    response_model=JobsBody,
    responses=documented(*READING),
)
async def all_jobs(request: Request, _: Annotated[object, Depends(may_read)]) -> JSONResponse:
    found = await asyncio.to_thread(service_of(request).jobs.all)
    return JSONResponse({"jobs": [job.model_dump() for job in found]})


@router.get(
    "/evaluate/{id}",
    summary="Show an evaluation with its progress and result",
    response_model=Job,
    responses=documented("not_found", *READING),
)
async def one(request: Request, id: _Id, _: Annotated[object, Depends(may_read)]) -> JSONResponse:
    found = await asyncio.to_thread(service_of(request).jobs.get, id)
    return JSONResponse(found.model_dump())


@router.delete(
    "/evaluate/{id}",
    summary="Cancel an evaluation",
    response_model=Job,
    responses=documented("not_found", *READING),
)
async def cancel(
    request: Request, id: _Id, _: Annotated[object, Depends(may_read)]
) -> JSONResponse:
    found = await asyncio.to_thread(service_of(request).jobs.cancel, id)
    return JSONResponse(found.model_dump())
