"""A client of the search server.

    client = Client("http://127.0.0.1:8000")
    client.search("bird.jpg", k=5).hits[0].label

A busy server says when to try again. The client does so a few times before it gives up.
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
    """An error that the server reports, or a server that cannot be reached.

    Attributes:
        status: the HTTP status; 0 without an answer.
        code: the code of the error, which stays the same between versions.
        retried: whether an earlier try got no answer, or the answer that the server is busy.
    """

    def __init__(
        self,
        sentence: str,
        status: int = 0,
        code: str = "unreachable",
        retried: bool = False,
    ) -> None:
        super().__init__(sentence)
        self.status, self.code, self.retried = status, code, retried


@dataclass(frozen=True)
class FoundItem:
    """An item of the gallery. ``score`` is its cosine similarity if a search found it."""

    id: str
    label: str | None
    metadata: Mapping[str, Any]
    image: str  # the address of its thumbnail, without the server
    score: float | None = None


@dataclass(frozen=True)
class Answer:
    """The hits of a search, the nearest first, and how long each stage took."""

    hits: tuple[FoundItem, ...]
    time: Mapping[str, float | None]  # the stage and its milliseconds


class Client:
    """Talks to one server.

    Args:
        server: the address of the server.
        key: a key from `couce key new`, if the server needs one.
        retries: how often a request to a busy server is tried again.
        timeout: seconds that the server may take to connect, and to answer.
    """

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
                # All methods are retried: to add an item twice is the same as to add it once.
                allowed_methods=None,
                backoff_factor=0.2,
                raise_on_status=False,  # the last answer has the reason
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
        """Searches with an image, the id of an item, or a vector.

        Args:
            image: the image, as a path or as bytes.
            id: an item of the gallery to search with.
            vector: an embedding (d,) to search with.
            k: how many hits to return.
            offset: how many of the best hits to skip.
            filter: conditions on the hits, such as ``["label=wren"]``.
            min_score: the lowest cosine similarity of a hit.
            group_by: ``label`` returns only the best hit of each label.
        """
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
        """The embeddings (n, d) of images, of unit length."""
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
        """Adds an image to the gallery. It is on the server's disk when this returns."""
        fields: dict[str, Any] = {"id": id, "label": label}
        if metadata is not None:
            fields["metadata"] = json.dumps(dict(metadata))
        fields = {name: value for name, value in fields.items() if value is not None}
        return _found(self._send("POST", "/items", fields=fields, images=[image]))

    def get(self, id: str) -> FoundItem:
        """The item with this id."""
        return _found(self._send("GET", f"/items/{quote(id, safe='')}"))

    def remove(self, id: str) -> None:
        """Removes an item from the gallery."""
        try:
            self._request("DELETE", f"/items/{quote(id, safe='')}")
        except ServerError as error:
            # If a second try finds no item, the first one removed it, and its answer was lost.
            if not (error.code == "not_found" and error.retried):
                raise

    def items(self, filter: Sequence[str] = ()) -> Iterator[FoundItem]:
        """All items in the order of their ids, which are fetched page by page."""
        offset = 0
        while True:
            query = urlencode({"offset": offset, "limit": 500, "filter": list(filter)}, doseq=True)
            page = self._send("GET", f"/items?{query}")["items"]
            if not page:
                return
            yield from map(_found, page)
            offset += len(page)

    def picture(self, id: str, size: int = 256) -> bytes:
        """The thumbnail of an item, as a JPEG whose longer side has ``size`` pixels."""
        return self._request("GET", f"/items/{quote(id, safe='')}/image?size={size}")

    def evaluate(
        self, queries: Path | None = None, embeddings: Path | None = None, every: float = 0.5
    ) -> dict[str, Any]:
        """Evaluates and returns the finished job, whose ``metrics`` are fractions.

        Without arguments, every labelled item of the index is a query.

        Args:
            queries: a zip of images in class folders, which are searched for in the index.
            embeddings: an npz with ``embeddings`` and ``labels``, which is evaluated by itself.
            every: seconds between two questions whether the evaluation has ended.
        """
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
        """The model, the index and the limits of the server."""
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
                f"{self.server} cannot be reached ({reason}); check the address, and that `couce"
                " serve` runs there"
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
        raise CouceError(f"there is no image at {image}; check the path") from None


def _found(body: Mapping[str, Any]) -> FoundItem:
    return FoundItem(body["id"], body["label"], body["metadata"], body["image"], body.get("score"))


def _error(answer: urllib3.BaseHTTPResponse) -> ServerError:
    try:
        problem = answer.json()
        retried = answer.retries is not None and bool(answer.retries.history)
        return ServerError(problem["detail"], answer.status, problem["code"], retried)
    except (ValueError, KeyError, TypeError):
        return ServerError(
            f"the server answered {answer.status} without a reason; check the address",
            answer.status,
            "unknown",
        )
