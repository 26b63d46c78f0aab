"""Object maps of the training images, and images before the backgrounds of other classes."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from couce.data import open_dataset
from couce.data.base import Split
from couce.data.demo import example_of, object_mask, read_plan
from couce.data.images import ImageStore
from couce.errors import CouceError
from couce.masks import masks_in
from couce.masks.backgrounds import paste, without_object
from couce.network import build_network
from couce.preprocess import Preprocess
from couce.train.batches import Objects, draw_donors, training_batches
from couce.train.objects import Regression, object_maps

CPU = torch.device("cpu")


@pytest.fixture
def store(pictures: Path) -> ImageStore:
    split = open_dataset("demo", pictures).train
    return ImageStore(split, Preprocess(resize=64, crop=48), "ram")


def overlap(maps: np.ndarray, store: ImageStore, pictures: Path) -> float:
    """The mean intersection over union with the true masks."""
    plan, found = read_plan(pictures), []
    for path, each in zip(store.split.paths, maps, strict=True):
        truth = np.asarray(object_mask(example_of(path, plan)).resize(each.shape)) > 127
        found.append(((each > 127) & truth).sum() / ((each > 127) | truth).sum())
    return float(np.mean(found))


def test_objects_of_the_demo_are_found(store: ImageStore, pictures: Path, tmp_path: Path) -> None:
    maps = object_maps("found", None, store, tmp_path, CPU)
    assert overlap(maps, store, pictures) > 0.75
    # The second time, they are read.
    (kept,) = tmp_path.glob("*.objects.npy")
    np.save(kept, np.zeros_like(maps))
    assert not object_maps("found", None, store, tmp_path, CPU).any()


def test_a_network_is_evidence_of_objects(store: ImageStore, tmp_path: Path) -> None:
    """Its map is strong only where the image is red, so the red object is found, not the green."""
    pixels = np.full((64, 64, 3), 90, np.uint8)
    pixels[16:48, 4:26] = (220, 30, 30)
    pixels[16:48, 38:60] = (30, 220, 30)
    path = tmp_path / "a" / "1.png"
    path.parent.mkdir()
    Image.fromarray(pixels).save(path)
    split = Split((path,), np.zeros(1, np.intp), ("a",))
    images = ImageStore(split, store.preprocess)
    network, _ = build_network("tiny", None, "none", 8, "avg", 64, 48)

    class Red(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            red = (x[:, :1] - x[:, 1:2]).clamp(min=0)
            return torch.nn.functional.avg_pool2d(red, 8)

    network.backbone.stage1 = torch.nn.Sequential()
    network.backbone.stage2 = Red()  # type: ignore[assignment]
    (found,) = object_maps("found", network, images, tmp_path / "cache", CPU) > 127
    assert found[32:96, 8:52].mean() > 0.8 > 0.2 > found[32:96, 76:120].mean()


def test_the_regression_is_that_of_the_normal_equations() -> None:
    """In three batches, against one solution in double precision."""
    rng = np.random.default_rng(0)
    cells = rng.normal(2.0, (1.0, 3.0, 0.5), (12, 4, 5, 3))
    target = cells @ np.array([0.3, -0.1, 0.8]) + 0.5 + rng.normal(0, 0.2, (12, 4, 5))
    regression = Regression()
    for part in np.split(np.arange(12), 3):
        tensors = (torch.from_numpy(each[part]).float() for each in (cells, target))
        regression.add(*tensors)
    regression.solve()
    x, y = cells.reshape(-1, 3), target.ravel()
    centred, offset = x - x.mean(axis=0), y - y.mean()
    ridge = 0.01 * centred.var(axis=0).mean() * len(x)
    weights = np.linalg.inv(centred.T @ centred + ridge * np.eye(3)) @ centred.T @ offset
    fitted = (centred @ weights + y.mean()).reshape(target.shape)
    np.testing.assert_allclose(regression(torch.from_numpy(cells).float()), fitted, atol=1e-4)
    explained = (weights @ centred.T @ offset) / (offset @ offset)
    assert regression.explained == pytest.approx(explained, abs=1e-4)


def test_poor_evidence_of_objects_is_a_warning(
    store: ImageStore, tmp_path: Path, messages: list[str]
) -> None:
    """A random network on noise: no linear function of its maps explains the estimates."""
    rng = np.random.default_rng(0)
    for number in range(40):
        path = tmp_path / "noise" / f"{number}.png"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (64, 64, 3), np.uint8)).save(path)
    paths = tuple(sorted((tmp_path / "noise").iterdir()))
    images = ImageStore(Split(paths, np.zeros(40, np.intp), ("noise",)), store.preprocess)
    network, _ = build_network("tiny", None, "none", 8, "avg", 64, 48)
    for _ in range(2):  # the second time, the kept maps are read
        messages.clear()
        object_maps("found", network, images, tmp_path / "cache", CPU)
        assert any("evidence of objects is poor" in line for line in messages)
    # Another split gives other features, although all weights are the same.
    other, _ = build_network("tiny", "layer2", "none", 8, "avg", 64, 48)
    other.backbone.load_state_dict(
        dict(
            zip(
                other.backbone.state_dict(),
                network.backbone.state_dict().values(),
                strict=True,
            )
        )
    )
    object_maps("found", other, images, tmp_path / "cache", CPU)
    assert len(list((tmp_path / "cache").glob("*.npy"))) == 2


def test_masks_of_a_folder_are_taken(store: ImageStore, pictures: Path, tmp_path: Path) -> None:
    plan = read_plan(pictures)
    for path in store.split.paths:
        target = tmp_path / path.parent.name / path.name
        target.parent.mkdir(exist_ok=True)
        object_mask(example_of(path, plan)).save(target)
    maps = object_maps(str(tmp_path), None, store, tmp_path / "cache", CPU)
    assert overlap(maps, store, pictures) > 0.99
    with pytest.raises(CouceError, match="no folder of masks"):
        object_maps(str(tmp_path / "absent"), None, store, tmp_path, CPU)
    (tmp_path / store.split.paths[0].parent.name / store.split.paths[0].name).unlink()
    with pytest.raises(CouceError, match="has no mask"):
        object_maps(str(tmp_path), None, store, tmp_path, CPU)


def test_donors_are_of_another_class_and_as_many_as_asked_for() -> None:
    labels = np.repeat(np.arange(40), 3)
    rng = np.random.default_rng(0)
    drawn = np.stack([draw_donors(labels, 0.5, rng) for _ in range(200)])
    taken = drawn >= 0
    assert taken.mean() == pytest.approx(0.5, abs=0.02)
    assert not np.any((labels[drawn] == labels[None])[taken])
    assert len(np.unique(drawn[taken])) == len(labels)  # every image lends its background


def test_a_batch_is_that_of_plain_loops(store: ImageStore) -> None:
    """Every image again, one by one: crop, donor, mask, paste."""
    rng = np.random.default_rng(0)
    maps = (rng.random((len(store.split.paths), 64, 64)) > 0.5).astype(np.uint8) * 255
    maps[0] = 0  # an image without an object stays as it is
    labels = store.split.labels
    plan = [np.arange(0, len(labels), 3), np.arange(1, len(labels), 3)]
    objects = Objects(maps, 0.6)
    batches = list(training_batches(store, labels, plan, 7, 2, objects=objects))
    halves = [
        list(training_batches(store, labels, plan, 7, 2, part, objects))
        for part in (slice(0, 10), slice(10, None))
    ]
    images = [store.load(index) for index in range(len(labels))]

    def cut(pixels: np.ndarray, crop: np.ndarray) -> np.ndarray:
        top, left, mirrored = crop
        part = pixels[top : top + 48, left : left + 48]
        return np.ascontiguousarray(part[:, ::-1] if mirrored else part)

    replaced = 0
    for step, chosen in enumerate(plan):
        joined = np.concatenate([half[step].pixels for half in halves])
        np.testing.assert_array_equal(batches[step].pixels, joined)  # as in several processes
        crops = np.random.default_rng((7, 2, 1, step)).integers(0, (17, 17, 2), (len(chosen), 3))
        donors = draw_donors(labels[chosen], 0.6, np.random.default_rng((7, 2, 4, step)))

        for place, pixels in enumerate(batches[step].pixels):
            expected, mask = (cut(each[chosen[place]], crops[place]) for each in (images, maps))
            donor = donors[place]
            if donor >= 0 and mask.any():
                lent = [cut(each[chosen[donor]], crops[donor]) for each in (images, maps)]
                expected = paste(expected, mask, without_object(*lent))
                replaced += 1
            np.testing.assert_array_equal(pixels, expected)
    assert replaced > 10


def test_a_donor_that_does_not_decode_lends_nothing(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    paths = []
    for label in "ab":
        for number in range(2):
            path = tmp_path / label / f"{number}.png"
            path.parent.mkdir(exist_ok=True)
            Image.fromarray(rng.integers(0, 256, (16, 16, 3), np.uint8)).save(path)
            paths.append(path)
    paths[0].write_bytes(b"broken")
    labels = np.array([0, 0, 1, 1])
    images = ImageStore(Split(tuple(paths), labels, ("a", "b")), Preprocess(resize=16, crop=16))
    maps = np.full((4, 16, 16), 255, np.uint8)
    maps[:, 4:] = 0
    plan = [np.array([0, 2])]
    with pytest.warns(UserWarning, match="left out"):
        (batch,) = training_batches(images, labels, plan, 0, 0, objects=Objects(maps, 1.0))
    plain = next(iter(training_batches(images, labels, plan, 0, 0)))
    np.testing.assert_array_equal(batch.pixels[1], plain.pixels[1])  # its donor is broken
    assert np.any(batch.pixels[0] != plain.pixels[0])


def test_masks_in_reads_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    Image.new("L", (10, 10), 255).save(tmp_path / "a" / "1.png")
    read = masks_in(tmp_path)
    assert np.asarray(read(Path("x/a/1.jpg"), Image.new("RGB", (20, 30)))).shape == (30, 20)
