"""Compares the results of the same calls on a folder and on Milvus.

Each test makes one index of each kind and calls both. Their answers must be the same: ids, items,
and scores to 1e-4.
"""

import os
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from couce.errors import CouceError
from couce.index import Hit, Index, Item, NewItem, open_index
from couce.index.filters import Filter

from .conftest import numbered, unit


class Both:
    """Makes each call on two indexes and compares their answers."""

    def __init__(self, folder: Index, milvus: Index) -> None:
        self.folder, self.milvus = folder, milvus

    def __call__(self, work: Callable[[Index], Any]) -> Any:
        mine, theirs = work(self.folder), work(self.milvus)
        assert_same(mine, theirs)
        return mine

    def search(self, *arguments: Any, **options: Any) -> list[list[Hit]]:
        return list(self(lambda index: index.search(*arguments, **options)))

    def items(self, *arguments: Any) -> list[Item]:
        return list(self(lambda index: index.items(*arguments)))

    def refuse(self, work: Callable[[Index], Any], words: str) -> None:
        for index in (self.folder, self.milvus):
            with pytest.raises(CouceError, match=words):
                work(index)


def assert_same(mine: Any, theirs: Any) -> None:
    if isinstance(mine, Hit):
        assert mine.id == theirs.id
        assert mine.score == pytest.approx(theirs.score, abs=1e-4)
        assert_same(mine.item, theirs.item)
    elif isinstance(mine, Item):
        assert replace(mine, time=0.0) == replace(theirs, time=0.0)
        assert mine.time == pytest.approx(theirs.time, abs=30)
    elif isinstance(mine, np.ndarray):
        np.testing.assert_allclose(mine, theirs, atol=1e-6)
    elif isinstance(mine, list | tuple):
        assert len(mine) == len(theirs)
        for one, other in zip(mine, theirs, strict=True):
            assert_same(one, other)
    else:
        assert mine == theirs


@pytest.fixture
def both(tmp_path: Path, milvus: str) -> Iterator[Both]:
    address = f"{milvus}/c{uuid.uuid4().hex}"
    with (
        open_index(tmp_path / "index", "write", model_hash="a" * 64) as folder,
        open_index(address, "write", model_hash="a" * 64) as remote,
    ):
        yield Both(folder, remote)
        remote._client.drop_collection(remote._name)  # type: ignore[attr-defined]


def test_search_scores_and_items(both: Both) -> None:
    rows = unit(300)
    both(lambda index: index.add(numbered(rows)))
    hits = both.search(unit(5, seed=3), 10)
    assert [len(row) for row in hits] == [10] * 5
    assert hits[0][0].item.metadata["n"] == int(hits[0][0].id[1:])
    assert both.search(3 * rows[:1], 1)[0][0].score == pytest.approx(1, abs=1e-4)  # any length
    both(len)
    both(lambda index: index.labels())
    both(lambda index: (index.dim, index.model_hash))


def test_empty_and_k_beyond_the_gallery(both: Both) -> None:
    assert both(len) == 0
    assert both.search(unit(2), 5) == [[], []]
    assert both(lambda index: index.items()) == []
    assert both(lambda index: list(index.vectors())) == []
    assert both(lambda index: index.labels()) == {}
    assert both(lambda index: index.get("x")) is None
    assert both(lambda index: index.remove(["x"])) == 0
    assert both(lambda index: index.add([])) == []
    both(lambda index: index.add(numbered(unit(7))))
    assert [len(row) for row in both.search(unit(2), 50)] == [7, 7]
    assert both.search(unit(1), 5, filter={"label": "nobody"}) == [[]]
    assert both.search(unit(1)[:0], 5) == []
    both(lambda index: index.remove([f"i{n:05}" for n in range(7)]))
    assert both(len) == 0
    assert both.search(unit(2), 5) == [[], []]


def test_filters(both: Both) -> None:
    rows = unit(120)
    tricky = [
        "plain",
        "it's",
        'say "hi"',
        "back\\slash",
        "new\nline",
        "tab\t",
        "🐦",
        "é",
        "a and b",
        "%_",
    ]
    both(
        lambda index: index.add(
            NewItem(
                row,
                id=f"i{n:05}",
                label=tricky[n % 12] if n % 12 < 10 else None,
                metadata={
                    "n": n,
                    "half": n / 2,
                    "even": n % 2 == 0,
                    "text": tricky[n % 10],
                    "k\"e'y": n % 3,
                }
                if n % 7
                else {},
            )
            for n, row in enumerate(rows)
        )
    )
    query = unit(2, seed=8)
    for label in tricky:
        found = both.search(query, 200, filter={"label": label})
        assert len(found[0]) == 10
        assert both.search(query, 200, filter={"metadata.text": label})[0]
    conditions: tuple[Filter, ...] = (
        {"label": ["it's", "🐦"]},
        {"label": None},
        {"label": [None, "plain"]},
        {"id": ["i00003", "i00004", "absent"]},
        {"id": "i00003"},
        {"metadata.n": 7},
        {"metadata.n": [7, 8, 9.0]},
        {"metadata.half": 3.5},
        {"metadata.even": True},
        {"metadata.even": False, "label": "plain"},
        {"metadata.n": "7"},
        {"metadata.even": 1},
        {"metadata.k\"e'y": 2},
        {"metadata.absent": None},
        {"metadata.n": None},
        {"label": []},
        {"metadata.n": []},
    )
    for condition in conditions:
        both.search(query, 200, filter=condition)
        both.items(0, 200, condition)
    for injected in ('x" or id != "', "x' OR 1=1 --", '") || true'):
        assert both.search(query, 200, filter={"label": injected}) == [[], []]
        assert both.search(query, 200, filter={f"metadata.{injected}": 1}) == [[], []]
    both.refuse(lambda index: index.search(query, 5, filter={"lable": "x"}), "did you mean 'label'")
    both.refuse(lambda index: index.search(query, 5, filter={"label": 3}), "cannot be 3")


def test_upsert_and_delete(both: Both) -> None:
    rows = unit(60)
    both(lambda index: index.add(numbered(rows[:40])))
    both(lambda index: index.add(numbered(rows[40:], 20)))  # other vectors for the ids 20 to 39
    assert both(len) == 40
    both.search(rows[20:22], 5)
    assert both.search(rows[45:46], 1)[0][0].id == "i00025"
    both(
        lambda index: index.add(
            [NewItem(None, id="i00001", label="new", paths=("p",), stamps=(5,))]
        )
    )
    both(lambda index: index.get("i00001"))
    assert both.search(rows[1:2], 1, filter={"label": "new"})[0][0].score == pytest.approx(
        1, abs=1e-4
    )
    both.refuse(lambda index: index.add([NewItem(None, id="nobody")]), "whose vector could be kept")
    both(lambda index: index.add([NewItem(rows[0], id="twice"), NewItem(rows[1], id="twice")]))
    assert both(len) == 41
    assert both(lambda index: index.remove(["i00003", "i00003", "absent", "twice"])) == 2
    assert both(len) == 39
    both.search(rows[:5], 60)
    both(lambda index: index.add(numbered(rows[3:4], 3)))  # the removed item is added again
    both.search(rows[3:4], 3)


def test_paging(both: Both) -> None:
    rows = unit(90)
    both(lambda index: index.add(numbered(rows)))
    query = unit(1, seed=4)
    whole = both.search(query, 90)[0]
    for offset in (0, 10, 85, 90, 200):
        assert [h.id for h in both.search(query, 10, offset=offset)[0]] == [
            h.id for h in whole[offset : offset + 10]
        ]
        both.items(offset, 7)
        both.items(offset, 7, {"label": "l3"})
    both(lambda index: [tuple(b) for b in index.vectors(["i00005", "absent", "i00002"])])
    both(lambda index: [item.id for item in index.every_item()])
    both(lambda index: np.concatenate([b.vectors for b in index.vectors()]))
    both.refuse(lambda index: index.search(query, 0), "k must be at least 1")


def test_strange_items_come_back(both: Both) -> None:
    rows = unit(3)
    strange = (os.fsdecode(b"/a \xff.jpg"), "/new\nline '\".jpg", "/🐦.jpg")
    items = [
        NewItem(
            rows[0],
            id='it\'s "x" \\ \n 🐦',
            sha256="f" * 64,
            size=2**40,
            paths=strange,
            stamps=(1_700_000_000_123_456_789, 0, 7),
            metadata={"deep": {"list": [1, 2.5, None, "é"]}, "": "empty key"},
        ),
        NewItem(rows[1], sha256="ab" * 32),
        NewItem(rows[2], id="ü" * 256),
    ]
    ids = both(lambda index: index.add(items))
    found = both(lambda index: index.get_many(ids))
    assert found[0].paths == strange
    assert found[0].stamps[0] == 1_700_000_000_123_456_789
    both.search(rows, 3)
    both.refuse(lambda index: index.add([NewItem(rows[0], id="ü" * 257)]), "512 bytes")
    both.refuse(lambda index: index.add([NewItem(rows[0], id="\udcff")]), "UTF-8")
    both.refuse(lambda index: index.add([NewItem(unit(1, 9)[0], id="x")]), "9 dimensions")
    both.refuse(lambda index: index.search(unit(1, 9)), "9 dimensions")
    both.refuse(lambda index: index.add([NewItem(rows[0] * np.nan, id="x")]), "not finite")


def test_another_model_is_refused(both: Both, tmp_path: Path) -> None:
    both(lambda index: index.add(numbered(unit(2))))
    milvus = both.milvus.address  # type: ignore[attr-defined]
    secret = f"milvus+{milvus.uri.replace('://', '://root:Milvus@')}/{milvus.collection}"
    for address in (tmp_path / "index", secret):
        with pytest.raises(CouceError, match="built with another model"):
            open_index(address, model_hash="b" * 64)
        with pytest.raises(CouceError, match="16 dimensions"):
            open_index(address, dim=3)
        with open_index(address) as reader:
            assert len(reader) == 2
            with pytest.raises(CouceError, match="open for reading"):
                reader.add(numbered(unit(1)))
