"""Hostile requests and failures of the machine: each request is answered, and nothing is lost."""

import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from .serving import (
    Answer,
    Server,
    descendants,
    form,
    memory,
    parent_of,
    picture,
    read_answer,
    serving,
    wait_for,
)

PNG = picture(1)


@pytest.fixture
def place(tmp_path: Path, make_model: Callable[..., Path]) -> Path:
    """A folder with a model."""
    make_model()
    return tmp_path


@pytest.fixture(scope="module")
def shared(small_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("hostile")
    shutil.copy(small_model, folder)
    with serving(folder, "--new-index") as found:
        fill(found)
        yield found


@pytest.fixture
def server(shared: Server) -> Iterator[Server]:
    """A server with the items p0 to p2, which no test may change.

    After each test, the log must have no lines but those of requests.
    """
    yield shared
    assert shared.ask("POST", "/search", PNG, kind="image/png").status == 200
    assert shared.faults() == []
    for item in shared.ask("GET", "/items").json()["items"]:
        if item["id"] not in ("p0", "p1", "p2"):
            assert shared.ask("DELETE", item["image"].removesuffix("/image")).status == 204


def fill(server: Server) -> None:
    for number in range(3):
        added = add(server, f"p{number}", number, label=b"wren", metadata=b'{"year": 2024}')
        assert added.status == 201, added


def add(server: Server, id: str, seed: int, **fields: bytes) -> Answer:
    return server.ask_form("/items", ("image", picture(seed)), ("id", id.encode()), *fields.items())


def code(answer: Answer) -> tuple[int, str]:
    """The status and code of an answer that must be a problem."""
    assert answer.headers["content-type"] == "application/problem+json", answer
    found = answer.json()
    assert found["status"] == answer.status
    assert len(answer.body) < 2000  # the answer must not repeat the request
    return answer.status, found["code"]


def test_hosts_and_origins(server: Server) -> None:
    for host in ("[", "[::1", "a]b", "evil.org", "localhost.evil.org", "\xff", "", "@", "a b"):
        assert code(server.ask("GET", "/info", headers={"Host": host})) == (403, "forbidden")
    for origin in ("http://[", "null", "\xff", "http://localhost:1", "//", "http://evil.org"):
        answer = server.ask("GET", "/info", headers={"Origin": origin})
        assert code(answer) == (403, "forbidden")
    assert server.ask("GET", "/info", headers={"Origin": "http://localhost"}).status == 200
    assert server.ask("GET", "/info", headers={"Host": "[::1]:99999"}).status == 200


def test_addresses(server: Server) -> None:
    assert add(server, "\N{REPLACEMENT CHARACTER}", 5).status == 201
    for id in ("%FF", "%ED%A0%80", "%00", "..", "%2e%2e", "%2F", "%", "%zz", "a" * 5000):
        for tail in ("", "/image"):
            assert code(server.ask("GET", f"/items/{id}{tail}")) == (404, "not_found")
        assert code(server.ask("DELETE", f"/items/{id}")) == (404, "not_found")
    for path in (
        *("/items/", "/items//", "/items/p1/", "/search/", "/evaluate/", "//", "/%00"),
        *("/evaluate/turn", f"/evaluate/{'a' * 300}", "/evaluate/..%2f..", "/evaluate/%00"),
        *("/page/..%2Fapp.py", "/page/%00", f"/page/{'a' * 9000}"),
    ):
        assert code(server.ask("GET", path)) == (404, "not_found"), path
    assert server.ask("GET", b"/items/\xff").status == 400


def test_an_id_that_no_browser_can_ask_for(server: Server) -> None:
    for id in (".", ".."):
        assert code(add(server, id, 5)) == (422, "invalid")


@pytest.mark.parametrize(
    "filter",
    [
        "metadata.year%3D99999999999999999999",
        "metadata.year%3D" + "9" * 400,
        "metadata.year%3D" + "[" * 20_000,
        "metadata.year%3DNaN",
        "metadata.year%3D-Infinity",
        "metadata.year%3D1e400",
        "metadata.%00%3D1",
        "label%3D%00",
    ],
)
def test_filters_that_find_nothing(server: Server, filter: str) -> None:
    assert server.ask("GET", f"/items?filter={filter}").json()["items"] == []
    found = server.ask("POST", f"/search?filter={filter}", PNG, kind="image/png")
    assert found.json()["hits"] == []


def test_too_many_filters(server: Server) -> None:
    many = "&".join(f"filter=metadata.k{n}%3D1" for n in range(65))
    assert code(server.ask("GET", f"/items?{many}")) == (422, "invalid")
    assert code(server.ask("POST", f"/search?{many}", PNG)) == (422, "invalid")


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (rb'{"id": "\ud800"}', 400),
        (b'{"id": "\xed\xa0\x80"}', 400),  # one half of a surrogate pair
        (r'{"id": "\ud800"}'.encode("utf-16"), 400),
        (rb'{"id": "\u0000"}', 404),
        (rb'{"\ud800": "p1"}', 400),
        (rb'{"id": "p1", "filter": ["metadata.\ud800=1"]}', 400),
        (rb'{"id": "p1", "filter": ["x=1"]}', 422),
        (b'{"id": "p1", "filter": "label=wren"}', 422),
        (b'{"id": ["p1"]}', 422),
        (b'{"vector": []}', 422),
        (b'{"vector": ["1", "2"]}', 422),
        (b'{"vector": [NaN]}', 422),
        (b'{"vector": [1e999]}', 422),
        (b'{"vector": [' + b"9" * 400 + b"]}", 422),
        (b'{"vector": [' + b"9" * 5000 + b"]}", 400),
        (b'{"vector": [' + b",".join([b"1e38"] * 8) + b"]}", 422),
        (b'{"vector": [' + b",".join([b"{}"] * 60_000) + b"]}", 422),
        (b'{"id": "p1", "k": ' + b"9" * 400 + b"}", 422),
        (b'{"' + b"a" * 1_000_000 + b'": 1}', 422),
        (b"[" * 1_000_000, 400),
        (b'{"a":' * 100_000, 400),
        (b"[" + b"[]," * 2_000_000 + b"[]]", 413),
        (b"null", 400),
        (b"", 400),
        (b"\xff", 400),
    ],
)
def test_json(server: Server, body: bytes, expected: int) -> None:
    assert code(server.ask_json("POST", "/search", body))[0] == expected


def test_json_of_openai(server: Server) -> None:
    for body in (
        rb'{"input": "data:image/png;base64,AA==", "model": "\ud800"}',
        rb'{"input": "\ud800"}',
        b'{"input": [' + b"1," * 500_000 + b"1]}",
        b'{"input": []}',
        b'{"input": "data:image/png;base64,\xc3\xa9"}',
    ):
        answer = server.ask_json("POST", "/v1/embeddings", body)
        assert answer.status in (400, 422), answer
        assert len(answer.body) < 2000


def test_json_for_an_evaluation_is_short(server: Server) -> None:
    answer = server.ask_json("POST", "/evaluate", b"[" + b"[]," * 1000 + b"[]]")
    assert code(answer) == (413, "too_large")


def test_forms(server: Server) -> None:
    good, kind = form(("image", PNG), ("id", b"new"))
    refused: list[tuple[str, bytes]] = [
        ("multipart/form-data", good),
        ("multipart/form-data; boundary=", good),
        ("multipart/form-data; boundary=" + "a" * 9000, good),
        ("multipart/form-data; boundary=other", good),
        (kind, b""),
        (kind, good[: len(good) // 2]),
        (kind, good.replace(b'; name="image"', b"")),
        (kind, good.replace(b"form-data;", b"x" * 10_000)),
        (kind, form(*[("label", b"x")] * 5000)[0]),
        (kind, form(("image", PNG), ("image", PNG))[0]),
        (kind, form(("image", PNG), ("queries", PNG))[0]),
        (kind, form(("image", PNG), ("id", b"\xff\xfe"))[0]),
        (kind, form(("image", PNG), ("id", b"\xed\xa0\x80"))[0]),
        (kind, form(("image", PNG), ("metadata", b"[" * 70_000))[0]),
    ]
    for said, body in refused:
        assert code(server.ask("POST", "/items", body, kind=said))[0] == 400, (said, body[:80])
    for field, value in (
        *(("id", b"a\0b"), ("label", b"a\0b"), ("id", b"x" * 513), ("label", b"x" * 513)),
        *(("metadata", b"[]"), ("metadata", b'{"a": NaN}'), ("metadata", b'{"a": 1e999}')),
        *(("metadata", rb'{"\ud800": 1}'), ("metadata", rb'{"a": "\ud800"}')),
        ("metadata", b'{"a":' + b"[" * 100 + b"]" * 100 + b"}"),
        ("metadata", b'{"a":' + b"[" * 900 + b"]" * 900 + b"}"),
        ("unknown", b"x"),
    ):
        answer = server.ask_form("/items", ("image", PNG), (field, value))
        assert code(answer) == (422, "invalid"), (field, value[:40])
    twice = server.ask_form("/items", ("image", PNG), ("id", b"a"), ("id", b"b"))
    assert code(twice) == (422, "invalid")
    inner = form(("image", PNG), boundary="inner")[0]
    assert code(server.ask_form("/items", ("image", inner))) == (422, "bad_image")
    assert server.ask("GET", "/items").json()["total"] == 3


def test_a_form_is_utf8_whatever_it_says(server: Server) -> None:
    """Some codecs of Python give text that cannot be stored, or raise unexpected errors."""
    label = rb"\ud800 \x41"
    for charset in ("undefined", "punycode", "unicode_escape", "utf-16", "utf-7", "zlib", "\xff"):
        body, kind = form(("image", PNG), ("id", b"p1"), ("label", label))
        answer = server.ask("POST", "/items", body, kind=f"{kind}; charset={charset}")
        assert (answer.status, answer.json()["label"]) == (200, label.decode()), charset


def test_heads_without_end(server: Server) -> None:
    before = memory(server.process.pid)
    for start, more in (
        (b"GET /info?", b"y" * 1_000_000),
        (b"GET /info HTTP/1.1\r\nHost: localhost\r\nX: ", b"y" * 1_000_000),
        (b"GET /info HTTP/1.1\r\nHost: localhost\r\n", b"X: y\r\n" * 100_000),
        (chunked(PNG) + b"0\r\n", b"X: y\r\n" * 100_000),
        (chunked() + b"5;", b"y" * 1_000_000),
    ):
        answer = server.say(start, *[more] * 60)
        assert answer.status in (0, 400), answer
    assert memory(server.process.pid) < before + 30


def chunked(*chunks: bytes) -> bytes:
    head = b"POST /search HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    return head + b"".join(b"%x\r\n%s\r\n" % (len(each), each) for each in chunks)


def test_bodies_that_are_not_what_they_say(server: Server) -> None:
    head = b"POST /search HTTP/1.1\r\nHost: localhost\r\n"
    million = b"%x\r\n%s\r\n" % (10**6, bytes(10**6))
    assert server.say(chunked(PNG) + b"0\r\n\r\n").status == 200
    assert server.say(chunked(), *[million] * 25).status in (0, 413)  # it may close early
    assert code(server.say(head + b"Content-Length: 999999999\r\n\r\n")) == (413, "too_large")
    for wrong in (b"-5", b"5\r\nContent-Length: 6", b"9" * 30, b"5\r\nTransfer-Encoding: chunked"):
        assert server.say(head + b"Content-Length: " + wrong + b"\r\n\r\n" + PNG).status == 400


def test_who_leaves_is_forgotten(server: Server) -> None:
    """A client may leave in every phase of a request. This is no failure, and nothing remains."""
    before = len(statuses(server))
    body, kind = form(("image", PNG))
    sets, _ = form(("queries", PNG * 2000))
    for head, content in (
        (f"/search HTTP/1.1\r\nContent-Type: {kind}", body),
        ("/search HTTP/1.1\r\nContent-Type: image/png", PNG),
        ("/search HTTP/1.1\r\nContent-Type: application/json", b'{"id": "p1"}'),
        (f"/evaluate HTTP/1.1\r\nContent-Type: {kind}", sets),
        ("/evaluate HTTP/1.1\r\nContent-Type: application/zip", sets),
    ):
        lines = f"POST {head}\r\nHost: localhost\r\nContent-Length: {len(content)}\r\n\r\n"
        whole = lines.encode() + content
        for cut in (20, len(lines), len(lines) + 5, len(whole) - 1):
            with server.connect() as connection:
                connection.sendall(whole[:cut])
    wait_for(lambda: len(statuses(server)) >= before + 15)
    assert set(statuses(server)[before:]) == {499}
    assert server.ask("GET", "/evaluate").json() == {"jobs": []}
    evaluations = server.folder / "index" / "server" / "evaluations"
    wait_for(lambda: not evaluations.exists() or not any(evaluations.iterdir()))


def statuses(server: Server) -> list[int]:
    return [
        line["status"]
        for line in map(json.loads, server.log.read_text().splitlines())
        if line["route"] in ("/search", "/evaluate") and line["method"] == "POST"
    ]


def test_a_decoder_that_is_killed_is_replaced(server: Server) -> None:
    """It may be killed while it waits or while it works. Every request still succeeds."""
    count = len(server.decoders())
    for _ in range(3):
        for pid in server.decoders():
            os.kill(pid, signal.SIGKILL)
        assert server.ask("POST", "/search", PNG, kind="image/png").status == 200
    found: Counter[int] = Counter()

    stop = threading.Event()

    def search() -> None:
        for seed in itertools.takewhile(lambda _: not stop.is_set(), itertools.count()):
            found[server.ask("POST", "/search", picture(seed), kind="image/png").status] += 1

    threads = [threading.Thread(target=search) for _ in range(4)]
    for each in threads:
        each.start()
    for _ in range(4):
        wait_for(server.decoders)
        with suppress(ProcessLookupError, IndexError):  # it has ended, or not started
            os.kill(server.decoders()[0], signal.SIGKILL)
        # If two processes died in a row, the server would take the image for the cause. So each
        # client first gets an answer to an image that it sent after the kill.
        enough = found.total() + 2 * len(threads)
        wait_for(partial(lambda enough: found.total() >= enough, enough))
    stop.set()
    for each in threads:
        each.join()
    assert set(found) == {200}
    assert server.ask("POST", "/search", PNG, kind="image/png").status == 200
    assert 0 < len(server.decoders()) <= count  # replaced only when needed


def test_changes_of_one_id_at_once(server: Server) -> None:
    """In whatever order they happen, each item has its image, and no other image remains."""
    ids = ("same", "other/x")
    found: Counter[int] = Counter()

    def change(seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(40):
            id = rng.choice(ids)
            if rng.random() < 0.6:
                answer = add(server, id, rng.choice((100, 101)), label=rng.choice((b"a", b"b")))
            else:
                answer = server.ask("DELETE", f"/items/{id.replace('/', '%2F')}")
            found[answer.status] += 1

    threads = [threading.Thread(target=change, args=(seed,)) for seed in range(6)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert set(found) <= {200, 201, 204, 404}
    there = server.ask("GET", "/items").json()["items"]
    for item in there:
        assert server.ask("GET", item["image"]).status == 200
    images = server.folder / "index" / "server" / "images"
    assert len(list(images.rglob("*-*"))) == len(there)


def test_reloading_at_once(server: Server) -> None:
    found: list[int] = []
    threads = [
        threading.Thread(target=lambda: found.append(server.ask("POST", "/admin/reload").status))
        for _ in range(6)
    ]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert found == [200] * 6


@pytest.mark.parametrize("how", ["emptied", "overwritten", "replaced", "deleted"])
def test_an_index_that_is_damaged_under_the_server(place: Path, how: str) -> None:
    """No change is acknowledged that would be lost. Only the log has the reason."""
    with serving(place, "--new-index") as server:
        fill(server)
    with serving(place) as server:
        catalog = place / "index" / "catalog.db"
        size = catalog.stat().st_size
        if how == "emptied":
            os.truncate(catalog, 0)
        elif how == "overwritten":
            with catalog.open("r+b") as file:
                file.write(random.Random(0).randbytes(size))
        elif how == "replaced":
            copy = place / "copy.db"
            copy.write_bytes(catalog.read_bytes())
            copy.rename(catalog)
        else:
            catalog.unlink()
        for answer in (add(server, "new", 7), server.ask("DELETE", "/items/p1")):
            assert code(answer) == (503, "unavailable")
            assert str(place) not in answer.body.decode()
            assert "catalog.db" not in answer.body.decode()
        for path in ("/items", "/items/p1", "/labels", "/info", "/readyz"):
            assert server.ask("GET", path).status in (200, 503)
        assert server.ask("POST", "/search", PNG, kind="image/png").status in (200, 503)
        assert server.ask("GET", "/healthz").status == 200
        reloaded = server.ask("POST", "/admin/reload")
        assert reloaded.status == (200 if how == "replaced" else 409)
        assert any("catalog.db" in line for line in server.faults())
        assert not any("Traceback" in line for line in server.faults())


def test_a_disk_that_is_full(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files cannot grow beyond 100 KB, which has the same effect as a full disk."""
    with serving(place, "--new-index") as server:
        fill(server)
    popen: Any = subprocess.Popen
    # The limit is not set by preexec_fn, because that forks this process. A process in which other
    # tests have used gRPC (the client of Milvus) does not always survive a fork.
    limit = (
        "import os, resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000));"
        " os.execv(sys.argv[1], sys.argv[1:])"
    )

    def limited(command: list[str], **options: Any) -> Any:
        return popen([sys.executable, "-c", limit, *command], **options)

    monkeypatch.setattr(subprocess, "Popen", limited)
    with serving(place) as server:
        large = picture(5, size=(300, 300))
        answer = server.ask_form("/items", ("image", large), ("id", b"large"))
        assert code(answer) == (503, "unavailable")
        assert code(server.ask("GET", "/items/large")) == (404, "not_found")
        sets = server.ask("POST", "/evaluate", bytes(300_000), kind="application/zip")
        assert code(sets) == (503, "unavailable")
        assert code(server.ask_form("/evaluate", ("queries", bytes(3_000_000))))[0] == 503
        assert server.ask("GET", "/evaluate").json() == {"jobs": []}
        assert server.ask("POST", "/search", PNG, kind="image/png").status == 200
        assert all("File too large" in line for line in server.faults())
    files = list((place / "index" / "server").rglob("*-*"))
    assert len(files) == 3  # the images of p0 to p2, and no part of another one


def test_keys_that_are_damaged_let_nobody_in(place: Path) -> None:
    with serving(place, "--new-index") as server:
        keys = place / "index" / "server" / "keys.json"
        keys.parent.mkdir(exist_ok=True)
        keys.write_text("{")
        assert code(server.ask("GET", "/info")) == (401, "unauthorized")
        answer = server.ask("GET", "/info", headers={"Authorization": "Bearer any"})
        assert code(answer) == (503, "unavailable")
        assert "keys.json" not in answer.body.decode()
        assert server.ask("GET", "/healthz").status == 200


def test_processes_end_with_the_one_that_started_them(place: Path) -> None:
    server = Server(place, "--new-index", "--workers", "2")
    try:
        wait_for(lambda: len(server.decoders()) >= 2)
        started = descendants(server.process.pid)
        workers = [pid for pid in started if parent_of(pid) == server.process.pid]
        assert len(workers) >= 2
    finally:
        server.kill()
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in started))


def test_slow_bodies_and_idle_connections_do_not_keep_others_out(server: Server) -> None:
    """While two hundred clients send a byte and wait, the next client is served."""
    head = b"POST /search HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\nx"
    held = [server.connect() for _ in range(200)]
    try:
        for number, each in enumerate(held):
            each.sendall((head, b"GET / HT", b"")[number % 3])
        assert server.ask("POST", "/search", PNG, kind="image/png").status == 200
    finally:
        for each in held:
            each.close()


def test_a_request_after_one_that_was_refused_early(server: Server) -> None:
    """The rest of a refused body is not read as the next request."""
    with server.connect() as connection:
        for _ in range(3):
            body = b"GET /nowhere HTTP/1.1\r\n\r\n" * 2000
            head = f"POST /search HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
            connection.sendall(head.encode() + b"Content-Type: text/plain\r\n\r\n" + body)
            assert read_answer(connection).status == 415
            connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert read_answer(connection).json() == {"status": "alive"}


def test_pictures_do_not_say_where_they_lie(server: Server) -> None:
    (image,) = (server.folder / "index" / "server" / "images").rglob(
        "*-" + json.loads(server.ask("GET", "/items/p1").body)["sha256"][:32]
    )
    content = image.read_bytes()
    image.write_bytes(b"no image")
    answer = server.ask("GET", "/items/p1/image?size=100")
    image.write_bytes(content)
    assert code(answer) == (422, "bad_image")
    assert str(server.folder) not in answer.body.decode()
    assert "images" not in answer.body.decode()
