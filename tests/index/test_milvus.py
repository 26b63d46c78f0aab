"""Tests for Milvus alone: addresses, index types, outages, and copies to and from a folder."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path
from typing import Any

import pytest

from couce.errors import CouceError
from couce.index import NewItem, open_index
from couce.index.milvus.address import MilvusAddress

from .conftest import Couce, nearest, numbered, unit


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("milvus+http://host:19530", "collection's name"),
        ("milvus+http://host:19530/two words", "collection's name"),
        ("milvus+http:///name", "has the form"),
        ("milvus+http://host:port/name", "port or host"),
        ("milvus+http://host/name?consistensy=Strong", "did you mean 'consistency'"),
        ("milvus+http://host/name?consistency=strong", "did you mean 'Strong'"),
        ("milvus+http://host/name?timeout=long", "in seconds"),
    ],
)
def test_wrong_addresses_are_sentences(address: str, words: str) -> None:
    with pytest.raises(CouceError, match=words):
        open_index(address)


def test_the_parts_of_an_address() -> None:
    address = MilvusAddress.parse("milvus+https://tok%2Fen@[::1]/a?consistency=Bounded&timeout=3")
    assert (address.uri, address.token, address.user) == ("https://[::1]:19530", "tok/en", "")
    assert (address.consistency, address.timeout) == ("Bounded", 3)
    assert "tok" not in str(address)


def test_away_is_a_sentence_and_soon(couce: Couce) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    start = time.monotonic()
    said = couce("info", f"milvus+http://me:secret@127.0.0.1:{port}/x?timeout=2", code=2)
    assert f"Milvus at http://127.0.0.1:{port} does not answer" in said
    assert len(said.splitlines()) == 1, said
    assert "secret" not in said
    assert time.monotonic() - start < 15


def test_a_wrong_password_is_a_sentence(milvus: str) -> None:
    with pytest.raises(CouceError, match="Milvus at") as caught:
        open_index(milvus.replace("root:Milvus", "root:wrong") + "/x?timeout=5")
    assert "\n" not in str(caught.value)
    token = milvus.replace("root:Milvus", "root%3AMilvus")
    with open_index(f"{token}/x", "write") as index:
        assert len(index) == 0


def test_no_collection_and_one_of_somebody_else(milvus: str) -> None:
    with pytest.raises(CouceError, match="there is no collection"):
        open_index(f"{milvus}/nothing")
    with open_index(f"{milvus}/x", "write") as index:
        client = index._client  # type: ignore[attr-defined]
        client.create_collection("theirs", dimension=4)
        with pytest.raises(CouceError, match="was not made by CouCE"):
            open_index(f"{milvus}/theirs", "write")
        client.drop_collection("theirs")


def test_a_server_that_stops_answering_for_a_while_is_waited_for(
    milvus_server: Any, milvus: str
) -> None:
    rows = unit(1200)
    name = f"p{uuid.uuid4().hex}"
    server = milvus_server.server_proc.pid
    with open_index(f"{milvus}/{name}?timeout=1", "write") as index:
        index.add(numbered(rows[:10]))
        os.kill(server, signal.SIGSTOP)
        resume = threading.Timer(2.5, os.kill, (server, signal.SIGCONT))
        resume.start()
        try:
            index.add(numbered(rows))
        finally:
            resume.join()
        assert len(index) == 1200
        index._client.drop_collection(name)  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", ["flat", "ivf", "IVF_SQ8"])
def test_index_types(milvus: str, kind: str) -> None:
    rows = unit(200)
    name = f"t{uuid.uuid4().hex}"
    with open_index(f"{milvus}/{name}", "write", kind=kind) as index:
        index.add(numbered(rows))
        names = {"flat": "FLAT", "hnsw": "HNSW", "ivf": "IVF_FLAT"}
        assert index.info()["type"] == names.get(kind, kind)
        (hits,) = index.search(rows[:1], 5)
        assert [hit.id for hit in hits] == nearest(rows, rows[0], 5, range(200))
        index._client.drop_collection(name)  # type: ignore[attr-defined]


def test_a_collection_that_another_process_makes_is_seen(milvus: str) -> None:
    """A server may start before there is a collection. It must find one that another one makes."""
    address = f"{milvus}/s{uuid.uuid4().hex}"
    with (
        open_index(address, "write", "m", 2) as early,
        open_index(address, "write", "m", 2) as late,
    ):
        assert (len(early), early.search([[1.0, 0.0]])) == (0, [[]])
        late.add([NewItem([1.0, 0.0], id="a")])
        assert [hit.id for hit in early.search([[1.0, 0.0]])[0]] == ["a"]
        assert len(early) == 1


@pytest.mark.usefixtures("model")
def test_build_copy_and_back(milvus: str, gallery: Path, couce: Couce) -> None:
    address = f"{milvus}/g{uuid.uuid4().hex}"
    assert "12 added" in couce("build", "gallery", "--to", address)
    assert "12 unchanged" in couce("build", "gallery", "--to", address)
    (gallery / "class-0" / "0.png").unlink()
    assert "1 removed" in couce("build", "gallery", "--to", address, "--prune")
    assert "class-1" in couce("search", "gallery/class-1/0.png", "-k", "1", "--index", address)
    assert "11 items copied" in couce("copy", address, "back")
    other = f"{milvus}/h{uuid.uuid4().hex}"
    assert "11 items copied" in couce("copy", "back", other)
    with open_index(address) as first, open_index("back") as second, open_index(other) as third:
        found = [
            [(i.id, i.paths, i.label, i.sha256, i.size, i.stamps) for i in index.every_item()]
            for index in (first, second, third)
        ]
        assert found[0] == found[1] == found[2]
        assert len(found[0]) == 11
        assert first.model_hash == second.model_hash == third.model_hash
        first._client.drop_collection(first._name)  # type: ignore[attr-defined]
        first._client.drop_collection(third._name)  # type: ignore[attr-defined]
    # Two workers build into one collection that does not exist yet.
    command = [sys.executable, "-m", "couce", "index", "build", "gallery"]
    command += ["--to", address, "--shard"]
    workers = [subprocess.Popen([*command, f"{part}/2"], cwd=gallery.parent) for part in (1, 2)]
    assert [worker.wait() for worker in workers] == [0, 0]
    with open_index(address) as index:
        assert len(index) == 11
        index._client.drop_collection(index._name)  # type: ignore[attr-defined]
    assert "Milvus, which compacts by itself" in couce("compact", address, code=2)
