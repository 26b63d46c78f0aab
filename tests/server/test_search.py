"""POST /search and /embed: what they accept, find and refuse."""

import base64
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient
from openai import OpenAI
from PIL import Image, features

from couce.embedder import Embedder
from couce.index import open_index

from .conftest import CLASSES, EACH, Serve, picture, running


def ids(answer: Any) -> list[str]:
    assert answer.status_code == 200, answer.text
    return [hit["id"] for hit in answer.json()["hits"]]


def ranked(folder: Path, image: bytes) -> list[tuple[float, str, str]]:
    """All items as (score, id, label), the best first. They are compared one at a time."""
    (query,) = Embedder(folder / "model.onnx").embed([image])
    found = []
    with open_index(folder / "index") as index:
        for block in index.vectors():
            for id, label, row in zip(block.ids, block.labels, block.vectors, strict=True):
                found.append((float(np.dot(query, row)), id, str(label)))
    return sorted(found, reverse=True)


def test_an_image_is_searched_in_every_way_it_can_be_sent(client: TestClient, folder: Path) -> None:
    image = picture(3)
    expected = [id for _, id, _ in ranked(folder, image)][:5]
    form = {"image": ("bird.png", image)}
    assert ids(client.post("/search?k=5", files=form)) == expected
    assert ids(client.post("/search", files=form, data={"k": "5"})) == expected
    assert ids(client.post("/search?k=5", content=image)) == expected
    png = {"content-type": "image/png"}
    assert ids(client.post("/search?k=5", content=image, headers=png)) == expected
    curl = {"content-type": "application/x-www-form-urlencoded"}
    assert ids(client.post("/search?k=5", content=image, headers=curl)) == expected


def test_the_answer_says_what_was_found_and_how_long_it_took(client: TestClient) -> None:
    body = client.post("/search?k=1", content=picture(3)).json()
    (hit,) = body["hits"]
    assert hit["score"] == pytest.approx(1.0)
    assert (hit["label"], hit["metadata"]) == ("class-0", {})
    assert client.get(hit["image"]).headers["content-type"] == "image/jpeg"
    assert body["count"] == 1
    assert all(body["time"][f"{stage}_ms"] > 0 for stage in ("decode", "embed", "search", "total"))


def test_an_item_finds_the_others(client: TestClient, folder: Path) -> None:
    order = [id for _, id, _ in ranked(folder, picture(3))]
    found = ids(client.post("/search", json={"id": order[0], "k": 5}))
    assert found == order[1:6]
    assert ids(client.post("/search", json={"id": order[0], "k": 3, "offset": 2})) == order[3:6]
    assert client.post("/search", json={"id": "nobody"}).json()["code"] == "not_found"


def test_a_vector_finds_what_its_image_finds(client: TestClient, folder: Path) -> None:
    (row,) = Embedder(folder / "model.onnx").embed([picture(99)])
    by_image = ids(client.post("/search?k=12", content=picture(99)))
    assert ids(client.post("/search", json={"vector": (3 * row).tolist(), "k": 12})) == by_image
    for wrong in ([1.0], [0.0] * len(row), []):
        answer = client.post("/search", json={"vector": wrong})
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid"), wrong


def test_options_choose_among_the_hits(client: TestClient, folder: Path) -> None:
    image = picture(99)
    order = ranked(folder, image)
    assert ids(client.post("/search?k=4&offset=3", content=image)) == [
        id for _, id, _ in order[3:7]
    ]
    chosen = [id for _, id, label in order if label in ("class-0", "class-2")]
    found = client.post("/search?filter=label=class-0&filter=label=class-2&k=99", content=image)
    assert ids(found) == chosen
    least = order[4][0] - 1e-5
    assert ids(client.post(f"/search?min_score={least}&k=99", content=image)) == [
        id for score, id, _ in order if score >= least
    ]
    best = {label: id for _, id, label in reversed(order)}
    grouped = ids(client.post("/search?group_by=label", content=image))
    assert sorted(grouped) == sorted(best.values())
    assert grouped == [id for _, id, _ in order if id in grouped]
    assert ids(client.post("/search?group_by=label&k=1&offset=1", content=image)) == grouped[1:2]


@pytest.mark.parametrize(
    ("query", "status", "says"),
    [
        ("k=0", 422, "k: "),
        ("k=1001", 422, "k: "),
        ("k=many", 422, "k: "),
        ("K=3", 422, "no option 'K'"),
        ("k=3&k=4", 422, "given twice"),
        ("offset=-1", 422, "offset: "),
        ("filter=colour=red", 422, "unknown field in a filter 'colour'"),
        ("filter=label", 422, "field=value"),
        ("min_score=2", 422, "min_score: "),
        ("min_score=nan", 422, "min_score: "),
        ("group_by=id", 422, "group_by: "),
    ],
)
def test_wrong_options_are_said(client: TestClient, query: str, status: int, says: str) -> None:
    answer = client.post(f"/search?{query}", content=picture(0))
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
    assert says in answer.json()["detail"]


def test_wrong_bodies_are_said(client: TestClient) -> None:
    image = picture(0)

    def code(**request: Any) -> tuple[int, str]:
        answer = client.post("/search", **request)
        return answer.status_code, answer.json()["code"]

    assert code() == (400, "bad_request")
    assert code(content=b"no image") == (422, "bad_image")
    assert code(content=image[:200]) == (422, "bad_image")
    assert code(files={"file": ("a.png", image)}) == (400, "bad_request")
    two = [("image", ("a.png", image)), ("image", ("b.png", image))]
    assert code(files=two) == (400, "bad_request")
    assert code(json={"id": "a", "vector": [1.0]}) == (400, "bad_request")
    assert code(json={"k": 3}) == (400, "bad_request")
    assert code(json=[1]) == (400, "bad_request")
    for kind, body in (("application/json", b"{"), ("multipart/form-data", b"x")):
        assert code(content=body, headers={"content-type": kind}) == (400, "bad_request")
    assert code(content=image, headers={"content-type": "text/html"}) == (415, "unsupported_type")
    postscript = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n"
    assert code(content=postscript) == (422, "bad_image")


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF"])
def test_formats(client: TestClient, kind: str) -> None:
    if kind == "AVIF" and not features.check("avif"):
        pytest.skip("this Pillow has no AVIF")
    assert client.post("/search", content=picture(1, (64, 48), kind)).status_code == 200


def test_of_an_animation_the_first_frame_counts(client: TestClient) -> None:
    frames = [Image.open(io.BytesIO(picture(seed))) for seed in (1, 2)]
    file = io.BytesIO()
    frames[0].save(file, "GIF", save_all=True, append_images=frames[1:])
    still = io.BytesIO()
    frames[0].save(still, "GIF")
    scores = [
        client.post("/search?k=1", content=each.getvalue()).json()["hits"][0]["score"]
        for each in (file, still)
    ]
    assert scores[0] == pytest.approx(scores[1], abs=1e-6)


def test_limits(serve: Serve) -> None:
    client = serve(max_bytes=4096, max_pixels=1000)
    large = client.post("/search", content=picture(1, (80, 80)))
    assert (large.status_code, large.json()["code"]) == (413, "too_large")
    streamed = client.post("/search", content=(b"x" * 1000 for _ in range(10)))
    assert (streamed.status_code, streamed.json()["code"]) == (413, "too_large")
    bomb = client.post("/search", content=picture(1, (40, 26)))
    assert (bomb.status_code, bomb.json()["code"]) == (422, "bad_image")
    assert client.post("/search", content=picture(1)).status_code == 200


def test_an_image_that_takes_too_long_is_given_up(serve: Serve) -> None:
    client = serve(decode_seconds=0.1, max_bytes=10**8)
    file = io.BytesIO()
    Image.effect_noise((7000, 7000), 90).save(file, "PNG", compress_level=1)
    slow = client.post("/search", content=file.getvalue())
    assert (slow.status_code, slow.json()["code"]) == (422, "decode_timeout")
    # The process is replaced. On a busy machine, an image may then take more than 0.1 s.
    assert any(client.post("/search", content=picture(1)).status_code == 200 for _ in range(100))


def test_embeddings_are_the_embedders(client: TestClient, folder: Path) -> None:
    images = [picture(seed) for seed in range(20)]
    expected = Embedder(folder / "model.onnx").embed(images)
    form = [("image", (f"{n}.png", image)) for n, image in enumerate(images)]
    body = client.post("/embed", files=form).json()
    np.testing.assert_allclose(body["embeddings"], expected, atol=1e-6)
    assert body["dim"] == expected.shape[1]
    npy = client.post("/embed", files=form, headers={"accept": "application/x-npy"})
    found = np.load(io.BytesIO(npy.content))
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert client.post("/embed", content=b"").status_code == 400
    form[7] = ("image", ("7.png", b"broken"))
    assert client.post("/embed", files=form).json()["code"] == "bad_image"


def test_openais_own_client_works(folder: Path) -> None:
    image = picture(5)
    (expected,) = Embedder(folder / "model.onnx").embed([image])
    uri = f"data:image/png;base64,{base64.b64encode(image).decode()}"
    with running(folder) as (address, _):
        client = OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0)
        plain = client.embeddings.create(model="any", input=[uri], encoding_format="float")
        packed = client.embeddings.create(model="any", input=uri)  # asks for base64
        for answer in (plain, packed):
            np.testing.assert_allclose(answer.data[0].embedding, expected, atol=1e-6)
        with pytest.raises(Exception, match="send images as data URIs"):
            client.embeddings.create(model="any", input="a text")


def test_everything_is_found(client: TestClient) -> None:
    assert client.post("/search?k=1000", content=picture(1)).json()["count"] == CLASSES * EACH
