"""The gallery over HTTP: adding, listing, showing and removing items."""

import io
from pathlib import Path

from fastapi.testclient import TestClient
from PIL import Image

from couce.index import open_index

from .conftest import CLASSES, EACH, Serve, picture


def test_what_was_added_is_there_and_found(client: TestClient, folder: Path) -> None:
    image = picture(77, (300, 200))
    answer = client.post(
        "/items",
        files={"image": ("x.png", image)},
        data={"label": "new", "metadata": '{"year": 2024}'},
    )
    assert answer.status_code == 201
    item = answer.json()
    assert (item["label"], item["metadata"], item["size"]) == ("new", {"year": 2024}, len(image))
    assert client.get(f"/items/{item['id']}").json() == item
    (hit,) = client.post("/search?k=1&filter=metadata.year=2024", content=image).json()["hits"]
    assert hit["id"] == item["id"]
    small = client.get(f"{item['image']}?size=64")
    assert Image.open(io.BytesIO(small.content)).size == (64, 43)
    with open_index(folder / "index") as index:  # another reader sees it at once
        assert index.get(item["id"]) is not None


def test_the_same_again_changes_nothing_but_what_is_said(client: TestClient) -> None:
    image = picture(77)
    first = client.post("/items?label=new", content=image)
    again = client.post("/items", content=image)
    assert (first.status_code, again.status_code) == (201, 200)
    assert again.json() == first.json()
    other = client.post("/items?label=other", content=image)
    assert (other.status_code, other.json()["label"]) == (200, "other")
    assert client.get("/items").json()["total"] == CLASSES * EACH + 1


def test_an_id_takes_another_image(client: TestClient, folder: Path) -> None:
    client.post("/items?id=mine&label=old", content=picture(77))
    changed = client.post("/items?id=mine", content=picture(78))
    assert (changed.status_code, changed.json()["label"]) == (200, None)
    (hit,) = client.post("/search?k=1", content=picture(78)).json()["hits"]
    assert hit["id"] == "mine"
    kept = list((folder / "index" / "server" / "images").rglob("*-*"))
    assert [path.read_bytes() for path in kept] == [picture(78)]


def test_a_picture_of_the_gallery_is_known(client: TestClient, folder: Path) -> None:
    answer = client.post("/items", content=picture(0))
    assert (answer.status_code, answer.json()["label"]) == (200, "class-0")
    assert list((folder / "index" / "server").rglob("*-*")) == []


def test_ids_may_be_anything(client: TestClient) -> None:
    for id in ("a/b", "a/image", "../../etc/passwd", "ü 'x' \"y\" <b>", "%2F", "?k=1", "🐦"):
        made = client.post("/items", params={"id": id}, content=picture(5))
        assert (made.status_code, made.json()["id"]) == (201, id)
        address = made.json()["image"].removesuffix("/image")
        assert client.get(address).json()["id"] == id
        assert client.get(made.json()["image"]).status_code == 200
        assert client.delete(address).status_code == 204
        assert client.get(address).json()["code"] == "not_found"
        assert client.delete(address).status_code == 404


def test_removing_deletes_what_was_uploaded_and_nothing_else(
    client: TestClient, folder: Path
) -> None:
    id = client.post("/items", content=picture(77)).json()["id"]
    client.delete(f"/items/{id}")
    assert list((folder / "index" / "server" / "images").rglob("*-*")) == []
    own = client.get("/items?limit=1").json()["items"][0]["id"]
    assert client.delete(f"/items/{own}").status_code == 204
    assert len(list((folder / "gallery").rglob("*.png"))) == CLASSES * EACH


def test_paging_and_labels(client: TestClient) -> None:
    pages = [client.get(f"/items?offset={n}&limit=5").json()["items"] for n in (0, 5, 10)]
    ids = [item["id"] for page in pages for item in page]
    assert len(ids) == CLASSES * EACH
    assert ids == sorted(set(ids))
    assert client.get("/labels").json()["labels"] == {f"class-{n}": EACH for n in range(CLASSES)}
    filtered = client.get("/items?filter=label=class-1").json()
    assert {item["label"] for item in filtered["items"]} == {"class-1"}
    assert client.get("/items?limit=0").status_code == 422
    assert client.get("/items?filter=nonsense").json()["code"] == "invalid"


def test_a_picture_that_is_gone_is_said(client: TestClient, folder: Path) -> None:
    address = client.get("/items?limit=1").json()["items"][0]["image"]
    fresh = client.get(address)
    tag = fresh.headers["etag"]
    assert client.get(address, headers={"if-none-match": tag}).status_code == 304
    for path in (folder / "gallery").rglob("*.png"):
        path.unlink()
    assert client.get(f"{address}?size=99").json()["code"] == "not_found"
    assert client.get(f"{address}?size=5000").status_code == 422


def test_wrong_items_are_said(client: TestClient) -> None:
    for options, says in (
        ({"metadata": "{"}, "metadata: "),
        ({"metadata": "[1]"}, "metadata: "),
        ({"metadata": '{"x": "' + "y" * 40_000 + '"}'}, "bytes"),
        ({"id": "x" * 600}, "id: "),
        ({"label": "a\0b"}, "NUL"),
        ({"colour": "red"}, "no option 'colour'"),
    ):
        form = {"image": ("x.png", picture(5))}
        answer = client.post("/items", files=form, data=options)
        assert answer.status_code == 422, options
        assert says in answer.json()["detail"], options
    assert client.get("/items").json()["total"] == CLASSES * EACH
    assert client.post("/items", content=b"").status_code == 400


def test_reading_only(serve: Serve) -> None:
    client = serve(read_only=True)
    assert client.post("/items", content=picture(5)).json()["code"] == "forbidden"
    assert client.delete("/items/x").json()["code"] == "forbidden"
    assert client.post("/search", content=picture(5)).status_code == 200


def test_an_index_that_is_not_there_can_be_made(serve: Serve, folder: Path) -> None:
    client = serve(index=str(folder / "fresh"), new_index=True)
    assert client.post("/search", content=picture(5)).json()["hits"] == []
    assert client.post("/items", content=picture(5)).status_code == 201
    assert client.post("/search", content=picture(5)).json()["count"] == 1
