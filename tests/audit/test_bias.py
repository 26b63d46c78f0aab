"""The background-bias protocol: every image before other backgrounds."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from couce.audit.bias import Replaced, measure_bias
from couce.audit.models import Model
from couce.data import open_dataset
from couce.data.base import Split
from couce.data.demo import write_demo
from couce.errors import CouceError
from couce.masks import Masks, open_masks
from couce.masks.backgrounds import without_object
from couce.metrics import retrieval_metrics
from couce.preprocess import Preprocess

Call = Callable[..., tuple[int, str, str]]


class Recorder:
    """A model that keeps all pixels that it is given. Its embedding is the image itself."""

    def __init__(self) -> None:
        self.seen: list[NDArray[np.uint8]] = []

    def model(self) -> Model:
        return Model("recorder", Preprocess(resize=64, crop=64), self.run)

    def run(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        self.seen.append(pixels)
        rows = pixels[:, ::8, ::8].reshape(len(pixels), -1).astype(np.float32) - 127.5
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)


@pytest.fixture(scope="module")
def confounded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A demo set in whose training half each class has its own background."""
    return write_demo(tmp_path_factory.mktemp("bias") / "demo", confounding=1.0, per_class=3)


def test_only_backgrounds_change_and_they_are_those_of_other_classes(confounded: Path) -> None:
    data = open_dataset("demo", confounded)
    masks, split = open_masks(data), data.train
    recorder = Recorder()
    bias = measure_bias([recorder.model()], split, masks, drawings=2, size=64)
    images = [np.asarray(Image.open(path)) for path in split.paths]
    shapes = [
        np.asarray(masks.of(path, Image.fromarray(image)))
        for path, image in zip(split.paths, images, strict=True)
    ]
    behind = np.stack([without_object(*pair) for pair in zip(images, shapes, strict=True)])
    # The model gets batches of up to 32 images, in the order (views, images).
    views: list[list[NDArray[np.uint8]]] = [[], [], []]
    flat = iter(np.concatenate(recorder.seen))
    for start in range(0, len(images), 32):
        count = min(32, len(images) - start)
        for each in views:
            each += [next(flat) for _ in range(count)]
    donors: list[int] = []
    for clean, *replaced in zip(*views, strict=True):
        place = len(donors) // 2
        np.testing.assert_array_equal(clean, images[place])
        inside, outside = shapes[place] == 255, shapes[place] == 0
        for each in replaced:
            np.testing.assert_array_equal(each[inside], clean[inside])
            # Backgrounds are kept as JPEG, so they differ a little.
            distance = np.abs(behind[:, outside].astype(int) - each[outside]).mean(axis=(1, 2))
            donor = int(distance.argmin())
            assert distance[donor] < 12
            donors.append(donor)
    labels = split.labels
    assert not np.any(labels[donors] == np.repeat(labels, 2))
    assert len(set(donors)) > len(images) / 2
    # The metrics are those of all rows together.
    found = bias.found["recorder"]
    rows = recorder.run(np.stack(views[0]))
    assert found.clean == retrieval_metrics(rows, labels, nmi=False)
    expected = [retrieval_metrics(recorder.run(np.stack(v)), labels, nmi=False) for v in views[1:]]
    assert found.drawings == expected
    mean = (expected[0]["MAP@R"] + expected[1]["MAP@R"]) / 2
    assert found.lost("MAP@R") == pytest.approx(1 - mean / found.clean["MAP@R"])
    # The backgrounds gave the classes away, and now they do not.
    assert found.lost("R@1") > 0.5


def test_an_image_without_a_visible_object_keeps_its_background(confounded: Path) -> None:
    split = open_dataset("demo", confounded).train

    def first_only(path: Path, image: Image.Image) -> Image.Image:
        return Image.new("L", image.size, 9 if path == split.paths[0] else 0)  # 9/255 is 4 %

    recorder = Recorder()
    masks = Masks("of one image", first_only)
    bias = measure_bias([recorder.model()], split, masks, drawings=1, size=64)
    assert bias.without_mask == len(split.paths) - 1
    clean, replaced = np.concatenate(recorder.seen)[:64].reshape(2, 32, 64, 64, 3)
    same = (clean == replaced).all(axis=(1, 2, 3))
    assert same.tolist() == [False] + [True] * 31
    nothing = Masks("empty", lambda _, image: Image.new("L", image.size))
    with pytest.raises(CouceError, match="no mask covers 1% of its image"):
        measure_bias([recorder.model()], split, nothing, drawings=1, size=64)


def test_backgrounds_can_come_from_a_folder(confounded: Path, tmp_path: Path) -> None:
    split = open_dataset("demo", confounded).train
    everything = Masks("empty", lambda _, image: Image.new("L", image.size, 5))  # 2 % of the object
    Image.new("RGB", (200, 90), (0, 200, 0)).save(tmp_path / "green.png")
    (tmp_path / "broken.png").write_bytes(b"no image")
    recorder = Recorder()
    with pytest.warns(UserWarning, match="left out"):
        measure_bias([recorder.model()], split, everything, tmp_path, drawings=1, size=64)
    replaced = np.concatenate(recorder.seen)[32:64]  # the second view of the first 32 images
    assert np.abs(replaced.mean(axis=(0, 1, 2)) - (0, 200, 0)).max() < 12


def test_the_command(runs: dict[str, Path], pictures: Path, call: Call, tmp_path: Path) -> None:
    arguments = ("--data", pictures, "--protocol", "background-bias", "--out", tmp_path)
    code, printed, complaint = call(
        "audit", runs["base"], runs["couce"], "demo", *arguments, "--drawings", 2
    )
    assert code == 0, complaint
    assert "MAP@R lost" in printed
    stored = json.loads((tmp_path / "background-bias.json").read_text())["values"]
    assert [len(each["drawings"]) for each in stored["models"].values()] == [2, 2]
    for extra, words in (
        (("--protocol", "bias"), "protocol"),
        (("--backgrounds", tmp_path), "--backgrounds is for --protocol background-bias"),
        (("--protocol", "background-bias", "--backgrounds", tmp_path / "no"), "no folder"),
    ):
        code, _, complaint = call("audit", runs["base"], "demo", "--data", pictures, *extra)
        assert code == 2
        assert words in complaint
        assert "Traceback" not in complaint


def test_what_is_lost_of_nothing_is_unknown() -> None:
    found = Replaced({"MAP@R": 0.0}, [{"MAP@R": 0.0}, {"MAP@R": float("nan")}])
    assert np.isnan(found.lost("MAP@R"))
    assert np.isnan(found.deviation("MAP@R"))


def test_without_another_class_there_are_no_backgrounds(tmp_path: Path) -> None:
    for label, content in (("a", None), ("b", b"broken")):
        for number in range(2):
            path = tmp_path / label / f"{number}.png"
            path.parent.mkdir(exist_ok=True)
            Image.new("RGB", (64, 64), "red").save(path)
            if content:
                path.write_bytes(content)
    paths = tuple(sorted(tmp_path.rglob("*.png")))
    split = Split(paths, np.array([0, 0, 1, 1]), ("a", "b"))
    masks = Masks("all", lambda _, image: Image.new("L", image.size, 255))
    with (
        pytest.warns(UserWarning, match="left out"),
        pytest.raises(CouceError, match="no image of another class"),
    ):
        measure_bias([Recorder().model()], split, masks, drawings=1, size=64)


def test_one_class_is_a_sentence(confounded: Path) -> None:
    split = open_dataset("demo", confounded).train
    one = split.select(split.labels == 0)
    assert isinstance(one, Split)
    with pytest.raises(ValueError, match="at least two"):
        measure_bias([Recorder().model()], one, Masks("", lambda _, image: image))
