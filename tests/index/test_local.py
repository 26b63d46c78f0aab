"""An index in a folder: search is compared with a plain reference after each kind of change."""

import json
import threading
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from numpy.typing import NDArray

from couce.errors import CouceError
from couce.index import Hit, Index, NewItem, open_index
from couce.index.local.index import LocalIndex
from couce.index.local.manifest import Manifest, Structure

from .conftest import nearest, numbered, unit


def ids(hits: list[list[Hit]]) -> list[list[str]]:
    return [[hit.id for hit in row] for row in hits]


def check(index: Index, rows: NDArray[np.float32], alive: list[int], seed: int = 99) -> None:
    """Compares searches with the reference: with and without filters, for one query and several."""
    queries = unit(4, rows.shape[1], seed)
    search = index.search
    assert ids(search(queries, 5)) == [nearest(rows, q, 5, alive) for q in queries]
    third = [n for n in alive if n % 7 == 3]
    assert ids(search(queries, 5, filter={"label": "l3"})) == [
        nearest(rows, q, 5, third) for q in queries
    ]
    both = [n for n in alive if n % 7 in (1, 2) and n % 2 == 0]
    found = search(queries[:1], 3, filter={"label": ["l1", "l2"], "metadata.even": True})
    assert ids(found) == [nearest(rows, queries[0], 3, both)]


@pytest.mark.parametrize("kind", ["flat", "ivf", "hnsw", "ivfpq", "IVF4,SQ8"])
def test_search_through_a_life(tmp_path: Path, kind: str) -> None:
    """The hits are exact after every step: a recall of 0.9999 makes a search visit all rows."""
    rows = unit(900)
    with LocalIndex(tmp_path / "index", "write", background=False) as index:
        index.add(numbered(rows[:600]))
        check(index, rows, list(range(600)))
        index.compact(Structure(asked=kind, recall=0.9999))
        measured = index.structure().measured
        assert (measured is None) == (kind == "flat")
        alive = list(range(600))
        index.add(numbered(rows[600:], 600))
        alive += range(600, 900)
        gone = {*range(0, 900, 3), 1, 2}
        assert index.remove(f"i{n:05}" for n in gone) == len(gone)
        alive = [n for n in alive if n not in gone]
        if kind != "hnsw":
            check(index, rows, alive)
        index.compact()
        assert index.info()["recent"] == index.info()["removed"] == 0
        assert index.info()["structure"].endswith({"flat": "Flat", "hnsw": "HNSW32"}.get(kind, ""))
        assert len(index) == len(alive)
        everything = index.search(rows[:2], 10_000)
        assert [len(row) for row in everything] == [len(alive)] * 2
        assert len(index.search(rows[:1], 10_000, filter={"label": "l3"})[0]) == sum(
            n % 7 == 3 for n in alive
        )


def test_a_graph_gives_as_many_as_are_asked_for(tmp_path: Path) -> None:
    """A search returns many more hits than the candidate list of HNSW holds."""
    rows = unit(6000, 8)
    with LocalIndex(tmp_path / "index", "write", background=False) as index:
        index.add(numbered(rows))
        index.compact(Structure(asked="hnsw"))
        index.remove(["i00007"])
        (hits,) = index.search(rows[:1], 5500)
        assert [hit.id for hit in hits[:50]] == nearest(
            rows, rows[0], 50, [n for n in range(6000) if n != 7]
        )
        assert len({hit.id for hit in hits}) == 5500


def test_an_item_is_replaced_by_its_id(tmp_path: Path) -> None:
    rows = unit(3)
    with open_index(tmp_path / "index", "write") as index:
        index.add([NewItem(rows[0], id="a", label="x", paths=("p",)), NewItem(rows[1], id="b")])
        index.add([NewItem(rows[2], id="a", label="y")])
        assert len(index) == 2
        item = index.get("a")
        assert item is not None
        assert (item.label, item.paths) == ("y", ())
        (hits,) = index.search(rows[2:], 2)
        assert hits[0].id == "a"
        assert hits[0].score == pytest.approx(1)
        index.add([NewItem(None, id="a", label="z")])  # keeps the vector
        assert index.search(rows[2:], 1, filter={"label": "z"})[0][0].score == pytest.approx(1)
        with pytest.raises(CouceError, match="whose vector could be kept"):
            index.add([NewItem(None, id="new")])
        assert index.add([NewItem(rows[0], id="c"), NewItem(rows[1], id="c")]) == ["c", "c"]
        assert index.search(rows[1:2], 1, filter={"id": "c"})[0][0].score == pytest.approx(1)
        assert index.labels() == {"z": 1}


def test_an_add_is_all_or_nothing(tmp_path: Path) -> None:
    rows = unit(3)
    with open_index(tmp_path / "index", "write") as index:
        with pytest.raises(CouceError, match="must have from 1 to 512 bytes"):
            index.add([NewItem(rows[0], id="a"), NewItem(rows[1])])
        with pytest.raises(CouceError, match="zero or not finite"):
            index.add([NewItem(rows[0], id="a"), NewItem(0 * rows[0], id="b")])
        with pytest.raises(CouceError, match="not JSON"):
            index.add([NewItem(rows[0], id="a", metadata={"x": object()})])
        assert len(index) == 0
        index.add([NewItem(rows[0], sha256="ab" * 32)])
        assert index.get("ab" * 16) is not None
        with pytest.raises(CouceError, match="17 dimensions and the index has 16"):
            index.add([NewItem(unit(1, 17)[0], id="b")])
        with pytest.raises(CouceError, match="17 dimensions"):
            index.search(unit(1, 17))


def test_an_empty_index(tmp_path: Path) -> None:
    with open_index(tmp_path / "index", "write") as index:
        assert index.search(unit(2), 5) == [[], []]
        assert index.search(unit(2)[:0], 5) == []
        assert index.items() == []
        assert list(index.vectors()) == []
        assert index.labels() == {}
        assert index.remove(["a"]) == 0
        assert index.get("a") is None
        index.add(numbered(unit(1)))
        index.remove(["i00000"])
        assert isinstance(index, LocalIndex)
        index.compact()
        assert index.search(unit(2), 5) == [[], []]
    with open_index(tmp_path / "index") as index:
        assert index.search(unit(2), 5) == [[], []]


def test_pages_and_vectors(tmp_path: Path) -> None:
    rows = unit(50)
    with open_index(tmp_path / "index", "write") as index:
        index.add(numbered(rows))
        pages = [item.id for offset in range(0, 60, 7) for item in index.items(offset, 7)]
        assert pages == [f"i{n:05}" for n in range(50)]
        assert [item.id for item in index.items(1, 2, {"label": "l3"})] == ["i00010", "i00017"]
        (block,) = index.vectors()
        assert block.ids == pages
        assert block.labels[:2] == ["l0", "l1"]
        np.testing.assert_array_equal(block.vectors, rows)
        (block,) = index.vectors(["i00007", "nothing", "i00003"])
        np.testing.assert_array_equal(block.vectors, rows[[7, 3]])
        whole = ids(index.search(rows[:1], 20))[0]
        assert ids(index.search(rows[:1], 5, offset=10))[0] == whole[10:15]
        assert (
            ids(index.search(rows[:1], 5, offset=48))[0] == ids(index.search(rows[:1], 50))[0][48:]
        )


def test_another_model_is_refused(tmp_path: Path) -> None:
    with open_index(tmp_path / "index", "write", model_hash="a" * 64, dim=16) as index:
        index.add(numbered(unit(2)))
        assert index.model_hash == "a" * 64
    with pytest.raises(CouceError, match=r"built with another model .*build another index"):
        open_index(tmp_path / "index", model_hash="b" * 64)
    with pytest.raises(CouceError, match="16 dimensions"):
        open_index(tmp_path / "index", dim=32)
    assert Manifest.read(tmp_path / "index").format == 1


def test_a_reader_follows_the_writer(tmp_path: Path) -> None:
    rows = unit(400)
    with (
        LocalIndex(tmp_path / "index", "write", background=False) as writer,
        open_index(tmp_path / "index") as reader,
    ):
        writer.add(numbered(rows[:200]))
        check(reader, rows, list(range(200)))
        writer.compact(Structure(asked="ivf", recall=0.9999))
        writer.remove(["i00000"])
        check(reader, rows, list(range(1, 200)))
        writer.add(numbered(rows[200:], 200))
        writer.compact()
        writer.remove(["i00001", "i00300"])
        writer.compact()
        check(reader, rows, [n for n in range(2, 400) if n != 300])
        with pytest.raises(CouceError, match="open for reading"):
            reader.add(numbered(rows[:1]))


def test_searches_during_adds_and_compaction_are_of_one_moment(tmp_path: Path) -> None:
    """The writer adds and removes ten items at once, so a search must see all ten or none."""
    rows = unit(500)
    crowd = np.repeat(unit(1, seed=5), 10, axis=0)
    faults: list[object] = []
    stop = threading.Event()
    with LocalIndex(tmp_path / "index", "write", background=False) as index:
        index.add(numbered(rows))

        def look() -> None:
            try:
                while not stop.is_set():
                    (hits,) = index.search(crowd[:1], 10)
                    together = sum(hit.id.startswith("crowd") for hit in hits)
                    if together not in (0, 10) or len({hit.item.label for hit in hits}) != (
                        1 if together else len({hit.item.label for hit in hits})
                    ):
                        faults.append(hits)
            except Exception as error:
                faults.append(error)

        threads = [threading.Thread(target=look) for _ in range(3)]
        for thread in threads:
            thread.start()
        for turn in range(12):
            index.add(NewItem(row, id=f"crowd{n}", label=f"t{turn}") for n, row in enumerate(crowd))
            if turn % 3 == 1:
                index.compact(Structure(asked="ivf" if turn % 2 else "flat"))
            if turn % 2:
                index.remove(f"crowd{n}" for n in range(10))
        stop.set()
        for thread in threads:
            thread.join()
    assert not faults, faults[0]


def test_changes_are_compacted_in_the_background(tmp_path: Path) -> None:
    rows = unit(9000, 8)
    with LocalIndex(tmp_path / "index", "write") as index:
        for start in range(0, 9000, 1000):
            index.add(numbered(rows[start : start + 1000], start))
        index.wait()
        assert index.info()["indexed"] > 4000
        assert len(index) == 9000
        queries = unit(3, 8, 7)
        assert ids(index.search(queries, 5)) == [nearest(rows, q, 5, range(9000)) for q in queries]


def test_learned_lists_are_kept_while_they_fit(tmp_path: Path) -> None:
    rows = unit(1200)
    with LocalIndex(tmp_path / "index", "write", background=False) as index:
        index.add(numbered(rows[:600]))
        first = index.compact(Structure(asked="ivf", recall=0.9999))
        index.add(numbered(rows[600:800], 600))
        index.remove(f"i{n:05}" for n in range(0, 800, 4))
        alive = [n for n in range(800) if n % 4]
        second = index.compact(fresh=False)
        assert second.structure == first.structure
        assert (second.count, index.info()["recent"], index.info()["removed"]) == (600, 0, 0)
        check(index, rows, alive)
        index.add(numbered(rows[800:], 800))
        third = index.compact(fresh=False)  # trains again, since there are many more vectors
        assert third.structure.built_for == 1000
        check(index, rows, [*alive, *range(800, 1200)])
        index.add(numbered(rows[:1]))
        assert index.compact(Structure(asked="flat"), fresh=False).structure.factory == "IDMap,Flat"
        check(index, rows, [0, *alive, *range(800, 1200)])


def test_files_beside_the_catalog_are_made_anew(tmp_path: Path, messages: list[str]) -> None:
    """A lost or damaged FAISS file or manifest is noticed.

    A reader searches without it, and a writer rebuilds it.
    """
    rows = unit(300)
    folder = tmp_path / "index"
    with LocalIndex(folder, "write", background=False) as index:
        index.add(numbered(rows))
        index.compact(Structure(asked="ivf", recall=0.9999))

    def damage(name: str) -> None:
        (path,) = folder.glob("vectors-*.faiss")
        content = path.read_bytes()
        if name == "lost":
            path.unlink()
        elif name == "cut":
            path.write_bytes(content[: len(content) // 2])
        elif name == "changed":
            path.write_bytes(content[:200] + bytes([content[200] ^ 1]) + content[201:])
        elif name == "hostile":
            path.write_bytes(b"IwFl" + b"\xff" * (len(content) - 4))
        elif name == "no manifest":
            (folder / "manifest.json").unlink()
        elif name == "broken manifest":
            (folder / "manifest.json").write_text("{")
        elif name == "wandering manifest":
            values = json.loads((folder / "manifest.json").read_text())
            values["file"]["name"] = "../../etc/passwd"
            (folder / "manifest.json").write_text(json.dumps(values))

    names = ["lost", "cut", "changed", "hostile", "no manifest", "broken manifest"]
    for name in [*names, "wandering manifest"]:
        damage(name)
        messages.clear()
        with open_index(folder) as reader:
            check(reader, rows, list(range(300)))
        assert len(messages) == 1, (name, messages)
        assert "searches are slower without it" in messages[0]
        messages.clear()
        with LocalIndex(folder, "write", background=False) as writer:
            check(writer, rows, list(range(300)))
            assert writer.faults() == []
        assert len(messages) == 1, (name, messages)
        assert "rebuilt from the catalog" in messages[0]
        assert len(list(folder.glob("vectors-*"))) == 1
        messages.clear()
        with open_index(folder) as reader:
            check(reader, rows, list(range(300)))
        assert not messages


def test_a_catalog_put_back_from_an_old_copy_is_followed(tmp_path: Path) -> None:
    rows = unit(30)
    folder = tmp_path / "index"
    with LocalIndex(folder, "write", background=False) as index:
        index.add(numbered(rows[:10]))
        index.compact()
    old = (folder / "catalog.db").read_bytes()
    with LocalIndex(folder, "write", background=False) as index:
        index.add(numbered(rows[10:], 10))
        index.compact()
    (folder / "catalog.db").write_bytes(old)
    modes: tuple[Literal["read", "write"], ...] = ("read", "write")
    for mode in modes:
        with open_index(folder, mode) as index:
            assert len(index.search(rows[:1], 30)[0]) == 10


def read_all(folder: Path, mode: Literal["read", "write"]) -> None:
    with open_index(folder, mode) as index:
        list(index.vectors())


@pytest.mark.parametrize("damage", ["noise", "cut", "empty", "missing", "other"])
def test_a_damaged_catalog_is_a_sentence(tmp_path: Path, damage: str) -> None:
    folder = tmp_path / "index"
    with LocalIndex(folder, "write", background=False) as index:
        index.add(numbered(unit(3000)))
        index.compact()
    path = folder / "catalog.db"
    content = path.read_bytes()
    for name in ("catalog.db-wal", "catalog.db-shm"):
        (folder / name).unlink(missing_ok=True)
    if damage == "noise":
        path.write_bytes(np.random.default_rng(0).bytes(len(content)))
    elif damage == "cut":
        path.write_bytes(content[: len(content) // 3])
    elif damage == "empty":
        path.write_bytes(b"")
    elif damage == "missing":
        path.unlink()
    else:
        import sqlite3

        path.unlink()
        with sqlite3.connect(path) as db:
            db.execute("CREATE TABLE cake (x)")
        db.close()
    before = sorted(p.name for p in folder.glob("vectors-*"))
    modes: tuple[Literal["read", "write"], ...] = ("read", "write")
    for mode in modes:
        with pytest.raises(CouceError) as caught:
            read_all(folder, mode)
        assert "\n" not in str(caught.value)
        assert "catalog.db" in str(caught.value) or "no index" in str(caught.value)
    assert sorted(p.name for p in folder.glob("vectors-*")) == before
