"""Masks from all their sources, and what is pasted with them."""

import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy import ndimage

from couce.data import open_dataset
from couce.data.demo import draw, example_of, examples, object_mask, read_plan
from couce.errors import CouceError
from couce.masks import open_masks
from couce.masks.backgrounds import paste, without_object
from couce.masks.estimate import estimate_mask, log_odds_of_place


def test_a_swap_with_a_perfect_mask_leaves_the_object_to_the_pixel() -> None:
    plan = [each for each in examples(0.5, 3, 0) if each.half == "test"][::17]
    for one, other in pairwise(plan):
        pixels, donor = np.asarray(draw(one)), np.asarray(draw(other))
        mask, donor_mask = (np.asarray(object_mask(each)) for each in (one, other))
        background = without_object(donor, donor_mask)
        swapped = paste(pixels, mask, background)
        np.testing.assert_array_equal(swapped[mask == 255], pixels[mask == 255])
        np.testing.assert_array_equal(swapped[mask == 0], background[mask == 0])
        far = ndimage.maximum_filter(donor_mask, 7) == 0  # from the donor's own object
        np.testing.assert_array_equal(swapped[(mask == 0) & far], donor[(mask == 0) & far])


def test_a_mask_of_the_demo_is_where_the_object_is_drawn() -> None:
    """If only the variant of the object changes, only pixels within the mask change."""
    plan = examples(0.5, 2, 0)
    checked = 0
    for example in plan[::9]:
        other = example._replace(variant=(example.variant + 1) % 8)
        mask = np.asarray(object_mask(example)) > 0
        difference = np.abs(np.asarray(draw(example)).astype(int) - np.asarray(draw(other)))
        assert difference[~mask].max() == 0
        checked += int(difference[mask].max() > 30)
    assert checked > 5


def test_the_fill_has_no_trace_of_the_object_and_keeps_the_rest() -> None:
    pixels = np.full((40, 60, 3), (40, 120, 200), np.uint8)
    pixels[10:30, 20:40] = (250, 10, 10)
    mask = np.zeros((40, 60), np.uint8)
    mask[10:30, 20:40] = 255
    np.testing.assert_allclose(
        without_object(pixels, mask), np.full_like(pixels, (40, 120, 200)), atol=1
    )
    assert (
        without_object(pixels, np.full((40, 60), 255, np.uint8)).shape == pixels.shape
    )  # nothing is known
    sloped = np.tile(np.linspace(0, 250, 60)[None, :, None], (40, 1, 3)).astype(np.uint8)
    filled = without_object(sloped, mask).astype(int)
    np.testing.assert_array_equal(filled[:, :15], sloped[:, :15])
    assert np.abs(filled - sloped).max() < 60  # the fill continues the slope around it


def test_estimated_masks_find_the_objects_of_the_demo() -> None:
    overlaps, guesses = [], []
    middle = np.hypot(*np.mgrid[-1:1:64j, -1:1:64j]) < 0.65
    for example in [each for each in examples(0.5, 4, 0) if each.half == "test"][::6]:
        truth = np.asarray(object_mask(example)) > 127
        found = np.asarray(estimate_mask(draw(example))) > 127
        overlaps.append((truth & found).sum() / (truth | found).sum())
        guesses.append((truth & middle).sum() / (truth | middle).sum())
    assert np.mean(overlaps) > 0.7 > 0.5 > np.mean(guesses)
    assert estimate_mask(Image.new("RGB", (50, 30), "red")).size == (50, 30)  # there is no object


def test_where_masks_come_from(pictures: Path, tmp_path: Path) -> None:
    data = open_dataset("demo", pictures)
    assert open_masks(data).kind == "drawn with the images"
    path = data.test.paths[0]
    drawn = open_masks(data).of(path, Image.open(path))
    assert drawn == object_mask(example_of(path, read_plan(pictures)))
    assert open_masks(open_dataset(str(pictures))).kind == "drawn with the images"
    plain = open_dataset(
        str(pictures / "test")
    )  # class folders without a recipe are not a demo set
    assert open_masks(plain).kind.startswith("estimated")
    folder = tmp_path / "segmentations" / path.parent.name
    folder.mkdir(parents=True)
    drawn.save(folder / f"{path.stem}.png")
    annotated = open_masks(plain, tmp_path / "segmentations")
    assert annotated.of(path, Image.open(path)) == drawn
    with pytest.raises(ValueError, match="has no mask"):
        annotated.of(data.test.paths[-1], Image.open(path))
    Image.new("L", drawn.size, 1).save(folder / f"{path.stem}.png")  # class numbers instead of 255
    with pytest.raises(ValueError, match="save masks with 255 for the object"):
        annotated.of(path, Image.open(path))


def test_the_fill_has_only_colours_from_around_the_object() -> None:
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (16, 16, 3), np.uint8)
    mask = np.zeros((16, 16), np.uint8)
    mask[6:9, 5:10] = 255
    filled = without_object(pixels, mask)
    wide = ndimage.maximum_filter(mask, 3) > 0
    np.testing.assert_array_equal(filled[~wide], pixels[~wide])
    # A filled pixel is a mean of known pixels, so it does not leave their range.
    near = ndimage.maximum_filter(mask, 13) > 0
    for channel in range(3):
        known = pixels[..., channel][near & ~wide]
        assert known.min() <= filled[..., channel][wide].min()
        assert filled[..., channel][wide].max() <= known.max()


def test_a_prior_moves_the_estimate() -> None:
    """There are two objects, and the prior says which one is meant."""
    pixels = np.full((64, 96, 3), 60, np.uint8)
    left, right = (slice(20, 44), slice(10, 34)), (slice(20, 44), slice(62, 86))
    pixels[left], pixels[right] = (200, 60, 40), (40, 180, 60)
    for meant, other, column in ((left, right, 1), (right, left, 4)):
        prior = np.full((4, 6), 0.001)
        prior[1:3, column] = 0.9
        found = np.asarray(estimate_mask(Image.fromarray(pixels), prior)) > 127
        assert found[meant].mean() > 0.8 > 0.2 > found[other].mean()
    assert abs(log_odds_of_place(8, 8).mean()) < 1e-12


@pytest.fixture
def network(tmp_path: Path) -> Callable[..., Path]:
    """Makes an ONNX file whose mask is the redness of the image, as probabilities or as logits."""

    def make(
        name: str = "u2net.onnx", size: int = 32, logits: bool = False, batch: int = 1
    ) -> Path:
        from onnx import TensorProto, helper, save

        nodes = [
            helper.make_node("Split", ["image"], ["red", "green", "blue"], axis=1, num_outputs=3),
            helper.make_node("Sub", ["red", "blue"], ["difference"]),
            helper.make_node("Constant", [], ["scale"], value_float=10.0),
            helper.make_node("Mul", ["difference", "scale"], ["logits"]),
            helper.make_node("Sigmoid", ["logits"], ["mask"]),
        ]
        shape = [batch, 1, size, size]
        graph = helper.make_graph(
            nodes,
            "salient",
            [helper.make_tensor_value_info("image", TensorProto.FLOAT, [batch, 3, size, size])],
            [
                helper.make_tensor_value_info(
                    "logits" if logits else "mask", TensorProto.FLOAT, shape
                )
            ],
        )
        opset = [helper.make_opsetid("", 18)]
        path = tmp_path / name
        save(helper.make_model(graph, opset_imports=opset, ir_version=10), path)
        return path

    return make


@pytest.fixture
def reds(tmp_path: Path) -> Path:
    """Two classes of images with a red square on blue, in different places."""
    for label in "ab":
        for number in range(2):
            pixels = np.full((40, 60, 3), (20, 20, 200), np.uint8)
            pixels[10:30, 10 + 20 * number : 30 + 20 * number] = (200, 20, 20)
            path = tmp_path / "reds" / label / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(path)
    return tmp_path / "reds"


@pytest.mark.parametrize(("name", "logits"), [("u2net.onnx", False), ("birefnet.onnx", True)])
def test_a_network_makes_masks_once(
    network: Callable[..., Path], reds: Path, name: str, logits: bool
) -> None:
    data = open_dataset(str(reds))
    model = network(name, logits=logits)
    masks = open_masks(data, model=model)
    assert name in masks.kind
    path = data.test.paths[1]
    image = Image.open(path)
    found = np.asarray(masks.of(path, image)) > 127
    truth = np.asarray(image)[..., 0] > 100
    assert (found & truth).sum() / (found | truth).sum() > 0.85
    (kept,) = reds.parent.glob("reds-masks-*")
    assert len(list(kept.rglob("*.png"))) == 1
    # The second time, the kept mask is read: the network is not asked again.
    (file,) = kept.rglob("*.png")
    Image.new("L", image.size, 7).save(file)
    assert np.asarray(masks.of(path, image)).max() == 7
    # Another size, or another image of this name, has another mask.
    assert np.asarray(masks.of(path, image.resize((30, 20)))).max() > 200
    assert np.asarray(masks.of(path, image.rotate(180))).max() > 200
    # Another network has other masks.
    other = open_masks(data, model=network("other.onnx", size=48))
    assert np.asarray(other.of(path, image)).max() > 200


def test_isnet_is_normalised_in_its_own_way(network: Callable[..., Path], reds: Path) -> None:
    data = open_dataset(str(reds))
    grey = Image.new("RGB", (32, 32), (128, 128, 128))  # as red as blue
    isnet = open_masks(data, model=network("isnet.onnx")).of(data.test.paths[0], grey)
    assert abs(np.asarray(isnet).mean() - 127.5) < 1
    # ImageNet's means and deviations of red and blue differ.
    u2net = open_masks(data, model=network("u2net.onnx")).of(data.test.paths[0], grey)
    assert abs(np.asarray(u2net).mean() - 127.5) > 20


def test_wrong_mask_models_are_sentences(
    network: Callable[..., Path], make_model: Callable[..., Path], reds: Path, tmp_path: Path
) -> None:
    data = open_dataset(str(reds))
    with pytest.raises(CouceError, match="either --masks or --mask-model"):
        open_masks(data, tmp_path, network())
    with pytest.raises(CouceError, match="no model at"):
        open_masks(data, model=tmp_path / "absent.onnx")
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"not a model")
    with pytest.raises(CouceError, match=r"broken\.onnx"):
        open_masks(data, model=broken)
    with pytest.raises(CouceError, match="not a salient-object network"):
        open_masks(data, model=make_model("embedding.onnx"))
    with pytest.raises(CouceError, match="not a salient-object network"):
        open_masks(data, model=network("four.onnx", batch=4))
    with pytest.raises(CouceError, match="no folder of masks"):
        open_masks(data, tmp_path / "absent")


def test_masks_are_made_anew_where_they_cannot_be_kept(
    network: Callable[..., Path], reds: Path, messages: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(30, "Read-only file system")

    data = open_dataset(str(reds))
    model = network()
    masks = open_masks(data, model=model)
    monkeypatch.setattr(Path, "mkdir", full)
    path = data.test.paths[0]
    for _ in range(2):
        assert np.asarray(masks.of(path, Image.open(path))).max() > 200
    assert sum("cannot be kept" in line and "Read-only" in line for line in messages) == 1
    monkeypatch.undo()
    assert not list(reds.parent.glob("reds-masks-*"))


def test_masks_of_this_folder_are_beside_it(
    network: Callable[..., Path], reds: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = network().resolve()
    monkeypatch.chdir(reds)
    data = open_dataset(".")
    path = data.test.paths[0]
    open_masks(data, model=model).of(path, Image.open(path))
    assert {each.name for each in reds.iterdir()} == {"a", "b"}


def test_of_a_cut_out_the_transparency_is_the_mask(reds: Path, tmp_path: Path) -> None:
    data = open_dataset(str(reds))
    path = data.test.paths[0]
    pixels = np.zeros((40, 60, 4), np.uint8)
    pixels[10:30, 10:30] = (200, 20, 20, 255)
    target = tmp_path / "cut" / path.parent.name / path.name
    target.parent.mkdir(parents=True)
    Image.fromarray(pixels).save(target)
    found = np.asarray(open_masks(data, tmp_path / "cut").of(path, Image.open(path)))
    np.testing.assert_array_equal(found > 127, pixels[..., 3] > 127)


def test_without_rembg_the_error_names_the_extra(
    reds: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "rembg", None)
    with pytest.raises(CouceError, match=r"pip install 'couce\[masks\]'"):
        open_masks(open_dataset(str(reds)), "rembg")


@pytest.mark.slow
def test_rembg_makes_masks(
    network: Callable[..., Path], reds: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real package, with a small network in place of the one that it would download."""
    pytest.importorskip("rembg", reason="rembg is not installed: pip install 'couce[masks]'")
    home = tmp_path / "home" / "models" / "isnet-general-use"
    home.mkdir(parents=True)
    network(size=1024).rename(home / "isnet-general-use.onnx")
    monkeypatch.setenv("REMBG_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("MODEL_CHECKSUM_DISABLED", "1")
    data = open_dataset(str(reds))
    masks = open_masks(data, "rembg")
    path = data.test.paths[0]
    image = Image.open(path)
    found = np.asarray(masks.of(path, image)) > 127
    truth = np.asarray(image)[..., 0] > 100
    assert (found & truth).sum() / (found | truth).sum() > 0.85
    assert len(list(reds.parent.glob("reds-masks-rembg*"))) == 1
