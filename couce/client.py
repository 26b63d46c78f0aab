"""A client of the search server.

    client = Client("http://127.0.0.1:8000")
    client.search("bird.jpg", k=5).hits[0].label

A server that is busy says when to come back, and the client does, a few times, before it gives up.
"""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote, urlencode

import numpy as np
import urllib3
from numpy.typing import ArrayLike, NDArray

from couce.errors import CouceError

Image = bytes | str | Path

_BUSY = (429, 503)


class ServerError(CouceError):
    """What the server says is wrong; ``code`` stays the same between versions."""

    def __init__(
        self,
        sentence: str,
        status: int = 0,
        code: str = "unreachable",
        retried: bool = False,  # whether an earlier try was not answered, or with "busy"
    ) -> None:
        super().__init__(sentence)
        self.status, self.code, self.retried = status, code, retried


@dataclass(frozen=True)
class FoundItem:
    """An item of the gallery; ``score`` is its cosine where it was searched for."""

    id: str
    label: str | None
    metadata: Mapping[str, Any]
    image: str  # address of its picture
    score: float | None = None


@dataclass(frozen=True)
class Answer:
    hits: tuple[FoundItem, ...]
    time: Mapping[str, float | None]  # milliseconds by stage


class Client:
    """``key``: from `couce key new`. ``retries``: how often it comes back to a busy server."""

    def __init__(
        self,
        server: str = "http://127.0.0.1:8000",
        key: str | None = None,
        retries: int = 5,
        timeout: float = 60.0,
    ) -> None:
        self.server = server.rstrip("/")
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._pool = urllib3.PoolManager(
            timeout=timeout,
            retries=urllib3.Retry(
                total=retries,
                connect=min(2, retries),
                status_forcelist=_BUSY,
                allowed_methods=None,  # all of them: adding is idempotent by id or content
                backoff_factor=0.2,
                raise_on_status=False,  # the last answer says why
            ),
        )

    def search(
        self,
        image: Image | None = None,
        *,
        id: str | None = None,
        vector: ArrayLike | None = None,
        k: int = 10,
        offset: int = 0,
        filter: Sequence[str] = (),
        min_score: float | None = None,
        group_by: Literal["label"] | None = None,
    ) -> Answer:
        """By an image, an item's id, or a vector. ``filter``: ``["label=wren"]``."""
        options: dict[str, Any] = {"k": k, "offset": offset, "filter": list(filter)}
        options |= {"min_score": min_score, "group_by": group_by, "id": id}
        options = {name: value for name, value in options.items() if value not in (None, [])}
        if image is not None:
            found = self._send("POST", "/search", fields=options, images=[image])
        else:
            if vector is not None:
                options["vector"] = np.asarray(vector, np.float32).tolist()
            found = self._send("POST", "/search", json=options)
        return Answer(tuple(_found(hit) for hit in found["hits"]), found["time"])

    def embed(self, images: Sequence[Image]) -> NDArray[np.float32]:
        """Unit rows (n, d)."""
        answer = self._request("POST", "/embed", images=images, accept="application/x-npy")
        return np.load(BytesIO(answer), allow_pickle=False)

    def add(
        self,
        image: Image,
        *,
        id: str | None = None,
        label: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> FoundItem:
        """On the server's disk once this returns."""
        fields: dict[str, Any] = {"id": id, "label": label}
        if metadata is not None:
            fields["metadata"] = json.dumps(dict(metadata))
        fields = {name: value for name, value in fields.items() if value is not None}
        return _found(self._send("POST", "/items", fields=fields, images=[image]))

    def get(self, id: str) -> FoundItem:
        return _found(self._send("GET", f"/items/{quote(id, safe='')}"))

    def remove(self, id: str) -> None:
        """Gone once this returns, also if the answer to a first try was lost."""
        try:
            self._request("DELETE", f"/items/{quote(id, safe='')}")
        except ServerError as error:
            if not (error.code == "not_found" and error.retried):
                raise

    def items(self, filter: Sequence[str] = ()) -> Iterator[FoundItem]:
        """All of them, page by page."""
        offset = 0
        while True:
            query = urlencode({"offset": offset, "limit": 500, "filter": list(filter)}, doseq=True)
            page = self._send("GET", f"/items?{query}")["items"]
            if not page:
                return
            yield from map(_found, page)
            offset += len(page)

    def picture(self, id: str, size: int = 256) -> bytes:
        """A JPEG."""
        return self._request("GET", f"/items/{quote(id, safe='')}/image?size={size}")

    def evaluate(
        self, queries: Path | None = None, embeddings: Path | None = None, every: float = 0.5
    ) -> dict[str, Any]:
        """The job when it has ended: of the index's own labels, of a zip of class folders, or of an npz."""
        if queries is not None:
            kind, body = "application/zip", queries.read_bytes()
        elif embeddings is not None:
            kind, body = "application/x-npz", embeddings.read_bytes()
        else:
            kind, body = "application/json", b'{"of": "index"}'
        job = json.loads(self._request("POST", "/evaluate", body=body, kind=kind))
        while job["state"] in ("queued", "running"):
            time.sleep(every)
            job = self._send("GET", f"/evaluate/{job['id']}")
        if job["state"] != "done":
            why = f": {job['detail']}" if job["detail"] else ""
            raise ServerError(f"the evaluation {job['state']}{why}", code=job["state"])
        return job

    def info(self) -> dict[str, Any]:
        return self._send("GET", "/info")

    def _send(self, method: str, path: str, **content: Any) -> dict[str, Any]:
        return json.loads(self._request(method, path, **content))

    def _request(
        self,
        method: str,
        path: str,
        *,
        fields: Mapping[str, Any] | None = None,
        images: Sequence[Image] = (),
        json: Mapping[str, Any] | None = None,
        body: bytes | None = None,
        kind: str | None = None,
        accept: str = "application/json",
    ) -> bytes:
        headers = {**self._headers, "Accept": accept}
        if kind is not None:
            headers["Content-Type"] = kind
        parts: list[tuple[str, Any]] = [("image", _file(image)) for image in images]
        for name, value in (fields or {}).items():
            parts += [(name, str(each)) for each in (value if isinstance(value, list) else [value])]
        try:
            answer = self._pool.request(
                method,
                self.server + path,
                fields=parts or None,
                json=json,
                body=body,
                headers=headers,
            )
        except urllib3.exceptions.HTTPError as error:
            reason = str(getattr(error, "reason", error)).rpartition(": ")[2]
            raise ServerError(
                f"{self.server} cannot be reached ({reason}); is it running?"
            ) from None
        if answer.status >= 400:
            raise _error(answer)
        return answer.data


def _file(image: Image) -> tuple[str, bytes]:
    if isinstance(image, bytes):
        return "image", image
    try:
        return "image", Path(image).read_bytes()
    except FileNotFoundError:
        raise CouceError(f"there is no image at {image}") from None


def _found(body: Mapping[str, Any]) -> FoundItem:
    return FoundItem(body["id"], body["label"], body["metadata"], body["image"], body.get("score"))


def _error(answer: urllib3.BaseHTTPResponse) -> ServerError:
    try:
        problem = answer.json()
        retried = answer.retries is not None and bool(answer.retries.history)
        return ServerError(problem["detail"], answer.status, problem["code"], retried)
    except (ValueError, KeyError, TypeError):
        return ServerError(f"the server answered {answer.status}", answer.status, "unknown")
