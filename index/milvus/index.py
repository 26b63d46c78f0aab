"""An index in Milvus, for galleries that are too large for one machine.

Each index is one collection, and the collection's description holds the hash of the model. Vectors
have unit length and are compared by cosine. The default consistency is Strong: every call sees all
changes that were acknowledged before it, as in a folder. But a change of several items is not one
transaction. After an error, some of the items may be changed. Repeating the change is safe and
completes it.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from couce.errors import CouceError
from couce.index.base import (
    ID_BYTES,
    Block,
    Hit,
    Item,
    Mode,
    NewItem,
    check_model,
    check_window,
    stacked,
    unit_rows,
)
from couce.index.filters import Clauses, Filter, clauses, to_milvus
from couce.index.local.structures import codes
from couce.index.milvus.address import MilvusAddress
from couce.index.milvus.calls import Calls
from couce.index.paths import paths_from_json, paths_json

WINDOW = 16_384  # the most hits that Milvus returns for a query
_BATCH = 500  # items of a request
_QUERIES = 64  # queries of a request; there are few, because each returns its items
_JSON_BYTES = 65_536  # the most bytes of a JSON field
_FIELDS = ["id", "label", "sha256", "size", "paths", "metadata", "time"]

# Milvus's names of our index types, and below the options with which they are built.
TYPES: dict[str, str] = {
    "auto": "HNSW",
    "flat": "FLAT",
    "hnsw": "HNSW",
    "ivf": "IVF_FLAT",
    "ivfpq": "IVF_PQ",
}
_BUILD: dict[str, dict[str, int]] = {
    "HNSW": {"M": 16, "efConstruction": 200},
    "IVF_FLAT": {"nlist": 1024},
    "IVF_SQ8": {"nlist": 1024},
    "IVF_PQ": {"nlist": 1024, "nbits": 8},
    "SCANN": {"nlist": 1024},
}


class MilvusIndex:
    """An index in a Milvus collection.

    If there is no collection, an index that is open for writing creates it with the first item.
    """

    def __init__(
        self,
        address: str,
        mode: Mode = "read",
        model_hash: str | None = None,
        dim: int | None = None,
        kind: str | None = None,
    ) -> None:
        self.address = MilvusAddress.parse(address)
        self._mode, self._kind = mode, kind
        self._call = Calls(self.address.uri)
        self._client = self._connect()
        self._found = False
        self.model_hash, self.dim = model_hash, dim
        try:
            if not self._there and mode != "write":
                raise CouceError(
                    f"there is no collection at {self.address}; create one with"
                    " `couce index build --to`"
                )
        except BaseException:
            self.close()
            raise

    # The methods of Index.

    def add(self, items: Iterable[NewItem]) -> list[str]:
        self._check_writing()
        new = list(items)
        kept = [each.item() for each in new]
        given = [place for place, each in enumerate(new) if each.vector is not None]
        # Of several items with the same id, the last one counts. Milvus would keep all of them.
        rows = {item.id: _row(item) for item in kept}
        if given:
            vectors = unit_rows(stacked([new[place].vector for place in given]), self.dim)
            self._make(vectors.shape[1])
            for place, vector in zip(given, vectors, strict=True):
                rows[kept[place].id]["vector"] = vector
        self._keep_vectors(rows)
        batch = list(rows.values())
        for start in range(0, len(batch), _BATCH):
            part = batch[start : start + _BATCH]
            self._call(partial(self._client.upsert, self._name, part, timeout=self._timeout))
        return [item.id for item in kept]

    def remove(self, ids: Iterable[str]) -> int:
        self._check_writing()
        there = [item.id for item in self.get_many(list(dict.fromkeys(ids))) if item is not None]
        for start in range(0, len(there), _BATCH):
            part = there[start : start + _BATCH]
            self._call(partial(self._client.delete, self._name, ids=part, timeout=self._timeout))
        return len(there)

    def get(self, id: str) -> Item | None:
        return self.get_many([id])[0]

    def get_many(self, ids: Sequence[str]) -> list[Item | None]:
        found = {row["id"]: _item(row) for row in self._rows_of(ids, _FIELDS)}
        return [found.get(id) for id in ids]

    def items(self, offset: int = 0, limit: int = 100, filter: Filter | None = None) -> list[Item]:
        check_window(max(1, limit), offset)
        found_clauses = clauses(filter)
        last, left = None, offset
        while left > 0:
            page = self._page(last, min(left, 10_000), found_clauses, ["id"])
            if not page:
                return []
            last, left = page[-1]["id"], left - len(page)
        found: list[Item] = []
        while len(found) < limit:
            page = self._page(last, min(limit - len(found), _BATCH), found_clauses, _FIELDS)
            if not page:
                break
            found += [_item(row) for row in page]
            last = page[-1]["id"]
        return found

    def every_item(self) -> Iterator[Item]:
        for page in self._pages(_FIELDS):
            yield from (_item(row) for row in page)

    def search(
        self, vectors: ArrayLike, k: int = 10, filter: Filter | None = None, offset: int = 0
    ) -> list[list[Hit]]:
        check_window(k, offset)
        if k + offset > WINDOW:
            raise CouceError(
                f"Milvus returns at most {WINDOW} hits, and k + offset is {k + offset}; lower them"
            )
        queries = unit_rows(vectors, self.dim)
        expression = to_milvus(clauses(filter))
        if not self._there:
            return [[] for _ in queries]
        found: list[list[Hit]] = []
        for start in range(0, len(queries), _QUERIES):
            part = queries[start : start + _QUERIES].tolist()
            result = self._call(
                partial(
                    self._client.search,
                    self._name,
                    data=part,
                    limit=k + offset,
                    filter=expression,
                    output_fields=_FIELDS,
                    search_params={"metric_type": "COSINE", "params": self._effort(k + offset)},
                    consistency_level=self.address.consistency,
                    timeout=self._timeout,
                )
            )
            found += [[_hit(hit) for hit in list(hits)[offset:]] for hits in result]
        return found

    def __len__(self) -> int:
        if not self._there:
            return 0
        (row,) = self._query("", ["count(*)"])
        return int(row["count(*)"])

    def labels(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for page in self._pages(["id", "label"]):
            for row in page:
                if row["label"]:
                    found[row["label"]] = found.get(row["label"], 0) + 1
        return dict(sorted(found.items()))

    def vectors(self, ids: Sequence[str] | None = None) -> Iterator[Block]:
        fields = ["id", "label", "vector"]
        if ids is None:
            pages = self._pages(fields)
        else:
            pages = (
                self._rows_of(ids[start : start + _BATCH], fields)
                for start in range(0, len(ids), _BATCH)
            )
        for page in pages:
            if page:
                rows = np.array([row["vector"] for row in page], np.float32)
                yield Block([r["id"] for r in page], [r["label"] or None for r in page], rows)

    def info(self) -> dict[str, Any]:
        kind = self._index_type() if self._there else None
        return {
            "backend": "Milvus",
            "address": str(self.address),
            "items": len(self),
            "labels": len(self.labels()),
            "dim": self.dim,
            "model": self.model_hash,
            "type": kind,
            "consistency": self.address.consistency,
            "server": self._call(lambda: self._client.get_server_version(timeout=self._timeout)),
        }

    def close(self) -> None:
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self.close()

    # Private parts.

    @property
    def _name(self) -> str:
        return self.address.collection

    @property
    def _timeout(self) -> float:
        return self.address.timeout

    def _connect(self) -> Any:
        try:
            from pymilvus import MilvusClient
        except ImportError:
            raise CouceError(
                "pymilvus is not installed; run `pip install 'couce[milvus]'`, or use an index in"
                " a folder"
            ) from None
        address = self.address
        with self._call.speaking():
            return MilvusClient(
                uri=address.uri,
                user=address.user,
                password=address.password,
                token=address.token,
                db_name=address.db,
                timeout=address.timeout,
            )

    @property
    def _there(self) -> bool:
        """Whether the collection exists. If it does not, the next call asks again.

        Another process may create it at any time.
        """
        if not self._found:
            self._look()
        return self._found

    def _look(self) -> None:
        """Asks the server for the collection. If it exists, checks its model and loads it."""
        client = self._client
        if not self._call(lambda: client.has_collection(self._name, timeout=self._timeout)):
            return
        found = self._call(lambda: client.describe_collection(self._name, timeout=self._timeout))
        fields = {field["name"]: field for field in found["fields"]}
        try:
            about = json.loads(found["description"])["couce"]
            dim = int(fields["vector"]["params"]["dim"])
        except (ValueError, KeyError, TypeError):
            raise CouceError(
                f"the collection at {self.address} was not made by CouCE; use another name"
            ) from None
        check_model(str(self.address), about.get("model_hash"), dim, self.model_hash, self.dim)
        self.model_hash, self.dim = about.get("model_hash"), dim
        self._type = self._index_type()
        self._call(lambda: client.load_collection(self._name, timeout=max(60, self._timeout)))
        self._found = True

    def _make(self, dim: int) -> None:
        """Creates the collection if it does not exist."""
        if self._there:
            return
        from pymilvus import DataType, MilvusClient

        schema = MilvusClient.create_schema(
            auto_id=False,
            enable_dynamic_field=False,
            description=json.dumps({"couce": {"format": 1, "model_hash": self.model_hash}}),
        )
        schema.add_field("id", DataType.VARCHAR, max_length=ID_BYTES, is_primary=True)
        schema.add_field("label", DataType.VARCHAR, max_length=ID_BYTES)
        schema.add_field("sha256", DataType.VARCHAR, max_length=64)
        schema.add_field("size", DataType.INT64)
        schema.add_field("paths", DataType.JSON)
        schema.add_field("metadata", DataType.JSON)
        schema.add_field("time", DataType.DOUBLE)
        schema.add_field("vector", DataType.FLOAT_VECTOR, dim=dim)
        kind = TYPES.get(self._kind or "auto", self._kind or "")
        options = dict(_BUILD.get(kind, {}))
        if kind == "IVF_PQ":
            options["m"] = codes(dim)
        indexes = MilvusClient.prepare_index_params()
        indexes.add_index("vector", index_type=kind, metric_type="COSINE", params=options)
        create = partial(
            self._client.create_collection,
            self._name,
            schema=schema,
            index_params=indexes,
            consistency_level=self.address.consistency,
            timeout=max(60, self._timeout),
        )
        try:
            self._call(create)
        except CouceError:
            # If the collection exists now, another worker has created it in the meantime.
            if not self._there:
                raise
        self._look()

    def _index_type(self) -> str:
        found = self._call(
            lambda: self._client.describe_index(self._name, "vector", timeout=self._timeout)
        )
        return str((found or {}).get("index_type", ""))

    def _effort(self, k: int) -> dict[str, int]:
        """The search parameters of the index type, which trade time for recall."""
        if self._type == "HNSW":
            return {"ef": max(128, k)}
        return {"nprobe": 64} if self._type.startswith(("IVF", "SCANN")) else {}

    def _keep_vectors(self, rows: dict[str, dict[str, Any]]) -> None:
        """Fills in the stored vectors and times of items that were given without a vector."""
        without = [id for id, row in rows.items() if "vector" not in row]
        for row in self._rows_of(without, ["id", "vector", "time"]):
            rows[row["id"]] |= {"vector": row["vector"], "time": row["time"]}
        for id in without:
            if "vector" not in rows[id]:
                raise CouceError(
                    f"the index has no item {id!r} whose vector could be kept; give a vector"
                )

    def _rows_of(self, ids: Sequence[str], fields: list[str]) -> list[dict[str, Any]]:
        found = []
        if self._there:
            for start in range(0, len(ids), _BATCH):
                part = to_milvus(clauses({"id": list(ids[start : start + _BATCH])}))
                found += self._query(part, fields)
        by_id = {row["id"]: row for row in found}
        return [by_id[id] for id in dict.fromkeys(ids) if id in by_id]

    def _pages(self, fields: list[str]) -> Iterator[list[dict[str, Any]]]:
        last = None
        while page := self._page(last, _BATCH, (), fields):
            yield page
            last = page[-1]["id"]

    def _page(
        self, after: str | None, limit: int, found: Clauses, fields: list[str]
    ) -> list[dict[str, Any]]:
        """The next items in the order of their ids.

        This relies on Milvus returning the lowest ids first, as its own iterators do.
        """
        if not self._there:
            return []
        beyond = (
            f"id > {json.dumps(after, ensure_ascii=False)}" if after is not None else 'id >= ""'
        )
        expression = " and ".join(part for part in (beyond, to_milvus(found)) if part)
        return sorted(self._query(expression, fields, limit), key=lambda row: row["id"].encode())

    def _query(
        self, expression: str, fields: list[str], limit: int | None = None
    ) -> list[dict[str, Any]]:
        options = {} if limit is None else {"limit": limit}
        return [
            dict(row)
            for row in self._call(
                lambda: self._client.query(
                    self._name,
                    filter=expression,
                    output_fields=fields,
                    consistency_level=self.address.consistency,
                    timeout=self._timeout,
                    **options,
                )
            )
        ]

    def _check_writing(self) -> None:
        if self._mode == "read":
            raise CouceError(f"{self.address} is open for reading only; open it with mode='write'")


def _row(item: Item) -> dict[str, Any]:
    paths = json.loads(paths_json(item.paths, item.stamps))
    size = len(json.dumps(paths, ensure_ascii=False).encode(errors="replace"))
    if size > _JSON_BYTES - 64:
        raise CouceError(
            f"the {len(item.paths)} paths of {item.id!r} take more than {_JSON_BYTES - 64} bytes,"
            " which Milvus cannot store; use an index in a folder"
        )
    return {
        "id": item.id,
        "label": item.label or "",
        "sha256": item.sha256 or "",
        "size": -1 if item.size is None else item.size,
        "paths": {"files": paths},
        "metadata": dict(item.metadata),
        "time": item.time,
    }


def _hit(found: Mapping[str, Any]) -> Hit:
    return Hit(found["entity"]["id"], float(found["distance"]), _item(found["entity"]))


def _item(row: Mapping[str, Any]) -> Item:
    paths, stamps = paths_from_json(json.dumps(row["paths"]["files"]))
    return Item(
        id=row["id"],
        paths=paths,
        label=row["label"] or None,
        sha256=row["sha256"] or None,
        size=None if row["size"] < 0 else row["size"],
        metadata=row["metadata"],
        time=row["time"],
        stamps=stamps,
    )
