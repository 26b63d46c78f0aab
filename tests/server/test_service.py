"""Keys, limits, evaluation and reload."""

import io
import shutil
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient

from couce.errors import CouceError
from couce.index import open_index
from couce.metrics import query_gallery_metrics, retrieval_metrics
from couce.server import ServerSettings, create_app
from couce.server.auth import Keys, Rates

from .conftest import CLASSES, EACH, Serve, picture


def finished(client: TestClient, job: dict[str, Any]) -> dict[str, Any]:
    until = time.monotonic() + 60
    while job["state"] in ("queued", "running"):
        assert time.monotonic() < until, job
        time.sleep(0.05)
        job = client.get(f"/evaluate/{job['id']}").json()
    return job


def of_index(folder: Path) -> tuple[Any, list[str]]:
    vectors, labels = [], []
    with open_index(folder / "index") as index:
        for block in index.vectors():
            vectors.append(block.vectors)
            labels += [str(label) for label in block.labels]
    return np.concatenate(vectors), labels


class TestEvaluation:
    KS = (1, 2, 4, 8)

    def test_of_the_index(self, client: TestClient, folder: Path) -> None:
        started = client.post("/evaluate", json={"of": "index"})
        assert started.status_code == 202
        assert started.headers["location"] == f"/evaluate/{started.json()['id']}"
        job = finished(client, started.json())
        assert (job["state"], job["items"], job["classes"]) == ("done", CLASSES * EACH, CLASSES)
        assert job["metrics"] == pytest.approx(retrieval_metrics(*of_index(folder), self.KS))
        assert client.get("/evaluate").json()["jobs"] == [job]

    def test_of_queries(self, client: TestClient, folder: Path) -> None:
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w") as archive:
            for seed in range(6):
                archive.writestr(f"set/class-{seed % 3}/{seed}.png", picture(100 + seed))
            archive.writestr("set/class-0/known.png", picture(0))  # in the gallery
            archive.writestr("set/class-1/broken.png", b"broken")
            archive.writestr("../../class-2/outside.png", picture(200))  # ignored
            archive.writestr("readme.txt", "no class")
        job = finished(client, client.post("/evaluate", files={"queries": file.getvalue()}).json())
        assert (job["state"], job["items"], job["left_out"]) == ("done", 6, 2), job
        rows = client.post("/embed", files=[("image", picture(s)) for s in range(100, 106)]).json()[
            "embeddings"
        ]
        labels = [f"class-{n % 3}" for n in range(6)]
        expected = query_gallery_metrics(rows, labels, *of_index(folder), self.KS)
        assert {k: v for k, v in job["metrics"].items() if k != "NMI"} == pytest.approx(expected)
        assert not (folder / "index" / "server" / "evaluations" / job["id"] / "input").exists()

    def test_of_queries_by_another_model_is_refused(
        self, client: TestClient, make_model: Callable[..., Path]
    ) -> None:
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr("class-0/1.png", picture(100))
        make_model(licence="another")  # the file is new, but the server has not loaded it
        job = finished(client, client.post("/evaluate", files={"queries": file.getvalue()}).json())
        assert job["state"] == "failed", job
        assert "model" in job["detail"]

    def test_of_embeddings(self, client: TestClient) -> None:
        rows = np.random.default_rng(0).standard_normal((30, 5)).astype(np.float32)
        labels = np.arange(30) // 6
        file = io.BytesIO()
        np.savez(file, embeddings=rows, labels=labels)
        headers = {"content-type": "application/x-npz"}
        job = client.post("/evaluate", content=file.getvalue(), headers=headers).json()
        unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
        expected = retrieval_metrics(unit, labels, self.KS)
        assert finished(client, job)["metrics"] == pytest.approx(expected)

    @pytest.mark.parametrize("field", ["queries", "embeddings"])
    def test_wrong_sets_fail_in_a_sentence(self, client: TestClient, field: str) -> None:
        objects = io.BytesIO()
        np.savez(objects, embeddings=np.array([{}], dtype=object), labels=[1])
        empty = io.BytesIO()
        zipfile.ZipFile(empty, "w").close()
        for content in (b"nonsense", objects.getvalue(), empty.getvalue()):
            job = finished(client, client.post("/evaluate", files={field: content}).json())
            assert job["state"] == "failed"
            assert job["detail"]
            assert "Traceback" not in job["detail"]

    def test_wrong_requests(self, client: TestClient) -> None:
        assert client.post("/evaluate", json={"of": "moon"}).status_code == 400
        assert client.post("/evaluate", content=b"x").status_code == 415
        assert client.post("/evaluate", files={"other": b"x"}).status_code == 400
        for id in ("nothing", "..%2f..", "a.b"):
            assert client.get(f"/evaluate/{id}").status_code == 404

    def test_cancelling(self, client: TestClient, folder: Path) -> None:
        lock = folder / "index" / "server" / "evaluations" / "turn"
        first = client.post("/evaluate", json={"of": "index"}).json()
        finished(client, first)
        with held(lock):  # as if another one ran, so that this one waits
            job = client.post("/evaluate", json={"of": "index"}).json()
            assert client.delete(f"/evaluate/{job['id']}").status_code == 200
            job = finished(client, job)
        assert (job["state"], job["metrics"]) == ("cancelled", None)

    def test_a_process_that_dies_is_noticed(
        self, client: TestClient, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("subprocess.Popen", lambda *_, **__: Dead())
        job = finished(client, client.post("/evaluate", json={"of": "index"}).json())
        assert job["state"] == "failed"
        assert "its process ended without a result" in job["detail"]


class Dead:
    def poll(self) -> int:
        return -9


@contextmanager
def held(path: Path) -> Iterator[None]:
    import fcntl

    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


class TestKeys:
    @pytest.fixture
    def tokens(self, folder: Path) -> dict[str, str]:
        keys = Keys.in_folder(folder / "index" / "server")
        return {role: keys.make(f"the {role}", role) for role in ("read", "admin")}

    def test_are_wanted_as_soon_as_there_is_one(self, serve: Serve, tokens: dict[str, str]) -> None:
        client = serve()
        image = picture(3)

        def status(method: str, path: str, token: str | None) -> int:
            headers = {"Authorization": f"Bearer {token}"} if token else {}
            content = image if method == "POST" else None
            return client.request(method, path, content=content, headers=headers).status_code

        for wrong in (None, "couce_wrong", tokens["read"][:-1], tokens["admin"] + "x", "é"):
            for path in ("/items", "/info", "/metrics", "/labels", "/evaluate"):
                if wrong != "é":
                    assert status("GET", path, wrong) == 401
        assert status("POST", "/search", tokens["read"]) == 200
        assert status("POST", "/items", tokens["read"]) == 403
        assert status("DELETE", "/items/x", tokens["read"]) == 403
        assert status("POST", "/admin/reload", tokens["read"]) == 403
        assert status("POST", "/items", tokens["admin"]) == 200
        for path in ("/", "/healthz", "/readyz", "/openapi.json"):
            assert status("GET", path, None) == 200

    def test_are_kept_as_hashes_and_revoked_at_once(
        self, serve: Serve, folder: Path, tokens: dict[str, str]
    ) -> None:
        path = folder / "index" / "server" / "keys.json"
        assert not any(token in path.read_text() for token in tokens.values())
        assert path.stat().st_mode & 0o077 == 0
        client = serve()
        headers = {"Authorization": f"Bearer {tokens['read']}"}
        assert client.get("/info", headers=headers).status_code == 200
        Keys(path).revoke("the read")
        assert client.get("/info", headers=headers).status_code == 401

    def test_others_are_not_let_in_without(self, folder: Path) -> None:
        settings = ServerSettings(
            model=folder / "model.onnx", index=str(folder / "index"), host="::"
        )
        with (
            pytest.raises(CouceError, match="couce key new"),
            TestClient(create_app(settings)),
        ):
            pass

    def test_changes_at_once_lose_none(self, tmp_path: Path) -> None:
        path = tmp_path / "keys.json"
        Keys(path).make("old", "read")
        changes = [lambda n=n: Keys(path).make(f"new {n}", "read") for n in range(12)]
        threads = [threading.Thread(target=each) for each in changes]
        threads.insert(6, threading.Thread(target=lambda: Keys(path).revoke("old")))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert {key.name for key in Keys(path).all()} == {f"new {n}" for n in range(12)}

    def test_have_a_rate(self, serve: Serve, folder: Path) -> None:
        token = Keys.in_folder(folder / "index" / "server").make("slow", "read", rate=2)
        client = serve()
        headers = {"Authorization": f"Bearer {token}"}
        answers = [client.get("/labels", headers=headers) for _ in range(4)]
        assert [answer.status_code for answer in answers[:2]] == [200, 200]
        assert answers[-1].json()["code"] == "rate_limited"
        assert int(answers[-1].headers["retry-after"]) >= 1

    def test_rates_refill(self, tmp_path: Path) -> None:
        keys = Keys(tmp_path / "keys.json")
        keys.make("a", "read", rate=2)
        (key,) = keys.all()
        rates = Rates()
        assert [rates.wait(key, 1, 0.0) for _ in range(2)] == [0, 0]
        assert rates.wait(key, 1, 0.0) == pytest.approx(0.5)
        assert rates.wait(key, 1, 0.5) == 0
        assert rates.wait(key, 1, 0.5) > 0


class TestGate:
    def test_every_answer_has_an_id_and_safe_headers(self, client: TestClient) -> None:
        for path in ("/", "/healthz", "/items", "/nowhere"):
            headers = client.get(path, headers={"x-request-id": "mine-1"}).headers
            assert headers["x-request-id"] == "mine-1"
            assert headers["x-content-type-options"] == "nosniff"
            assert "default-src 'none'" in headers["content-security-policy"]
        wrong = client.get("/healthz", headers={"x-request-id": "a b\tc"}).headers["x-request-id"]
        assert wrong != "a b\tc"

    def test_unknown_addresses_and_methods(self, client: TestClient) -> None:
        assert client.get("/nowhere").json()["code"] == "not_found"
        assert client.get("/search").json()["code"] == "method_not_allowed"
        assert client.get("/page/../settings.py").status_code == 404

    def test_other_pages_and_names_are_refused(self, serve: Serve) -> None:
        client = serve(origin=["https://friend.example"])
        for headers in (
            {"origin": "https://evil.example"},
            {"origin": "null"},
            {"host": "evil.example"},
            {"host": "127.0.0.1.evil.example:8000"},
        ):
            answer = client.post("/search", content=picture(1), headers=headers)
            assert answer.status_code == 403, headers
        for headers in (
            {"origin": "http://localhost"},
            {"host": "127.0.0.1:8000", "origin": "http://127.0.0.1:8000"},
            {"host": "[::1]:8000"},
            {"host": "friend.example"},  # a proxy that passes the name on
            {"origin": "https://friend.example"},
        ):
            answer = client.post("/search", content=picture(1), headers=headers)
            assert answer.status_code == 200, headers
        assert answer.headers["access-control-allow-origin"] == "https://friend.example"

    def test_measures_and_logs(self, client: TestClient, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level("INFO", "couce.server"):
            client.post("/search", content=picture(3))
        text = client.get("/metrics").text
        assert 'couce_requests_total{route="/search",status="200"} 1.0' in text
        assert 'couce_stage_seconds_count{stage="model"} 1.0' in text
        assert f"couce_index_items {float(CLASSES * EACH)}" in text
        assert '"route": "/search", "status": 200' in caplog.text

    def test_info(self, client: TestClient, folder: Path) -> None:
        info = client.get("/info").json()
        assert (info["index"]["items"], info["keys"]) == (CLASSES * EACH, "off")
        assert str(folder) not in str(info)


def test_a_full_queue_is_429_and_the_rest_is_served(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()
    client = serve(queue=3, batch=1)
    serving = client.app.state.service.live._now  # type: ignore[attr-defined]
    run = serving.image_batcher._run
    for way in ("_run", "_lane"):
        monkeypatch.setattr(serving.image_batcher, way, lambda p: (go_on.wait(20), run(p))[1])
    answers: list[Any] = []

    def ask(seed: int) -> None:
        answers.append(client.post("/search", content=picture(seed)))

    threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    until = time.monotonic() + 20
    while len(answers) < 5 and time.monotonic() < until:
        time.sleep(0.01)
    refused = list(answers)
    go_on.set()
    for thread in threads:
        thread.join()
    assert [answer.json()["code"] for answer in refused] == ["overloaded"] * 5
    assert all(int(answer.headers["retry-after"]) >= 1 for answer in refused)
    assert sorted(answer.status_code for answer in answers) == [200] * 3 + [429] * 5


class TestReload:
    def test_under_load_fails_no_request(self, client: TestClient) -> None:
        statuses: list[int] = []
        stop = threading.Event()

        def ask(seed: int) -> None:
            while not stop.is_set():
                statuses.append(client.post("/search", content=picture(seed)).status_code)

        threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        reloads: list[int] = []
        while len(reloads) < 5 or len(statuses) < 20:
            reloads.append(client.post("/admin/reload").status_code)
        stop.set()
        for thread in threads:
            thread.join()
        assert set(reloads) == {200}
        assert set(statuses) == {200}

    def test_to_a_model_that_does_not_fit_changes_nothing(
        self, client: TestClient, folder: Path, make_model: Callable[..., Path]
    ) -> None:
        before = client.get("/info").json()["model"]["hash"]
        shutil.move(folder / "model.onnx", folder / "kept.onnx")
        make_model(licence="another")
        answer = client.post("/admin/reload")
        assert (answer.status_code, answer.json()["code"]) == (409, "conflict")
        (folder / "model.onnx").write_bytes(b"nonsense")
        assert client.post("/admin/reload").status_code == 409
        assert client.get("/info").json()["model"]["hash"] == before
        assert client.post("/search", content=picture(3)).status_code == 200

    def test_takes_a_new_model_with_its_index(
        self, client: TestClient, folder: Path, make_model: Callable[..., Path]
    ) -> None:
        from couce.index.commands import build_index

        make_model(licence="another")
        shutil.move(folder / "index", folder / "old")
        build_index(folder / "gallery", folder / "model.onnx", str(folder / "index"))
        before = client.get("/info").json()["model"]["hash"]
        assert client.post("/admin/reload").json()["model"] != before
        assert client.post("/search", content=picture(3)).json()["hits"][0]["score"] > 0.999
