"""Interventions, masks and the audit: what they change, what they keep and what they count."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from couce.audit.command import background_names
from couce.audit.interventions import (
    INTERVENTIONS,
    Intervention,
    scale_ring,
)
from couce.audit.measure import (
    CLEAN,
    NO_OBJECT,
    OTHER,
    OWN,
    ROWS,
    Audit,
    AuditImages,
    QueryResults,
    _search,
    measure,
)
from couce.audit.models import Model
from couce.audit.report import counted, failures, summarise
from couce.data import open_dataset
from couce.data.base import LabelledImage, Split
from couce.masks import Masks, open_masks
from couce.metrics import retrieval_metrics
from couce.preprocess import Preprocess

Call = Callable[..., tuple[int, str, str]]


def photo(height: int = 48, width: int = 64) -> NDArray[np.uint8]:
    rng = np.random.default_rng(0)
    coarse = Image.fromarray(rng.integers(50, 200, (6, 8, 3), np.uint8))
    smooth = np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC))
    return smooth + rng.integers(0, 20, smooth.shape, np.uint8)


@pytest.mark.parametrize("each", INTERVENTIONS, ids=lambda each: each.name)
def test_interventions_change_the_image_and_at_strength_0_do_not(each: Intervention) -> None:
    pixels = photo()
    kept = pixels.copy()
    changed = each.change(pixels, np.random.default_rng(1), 1.0)
    assert changed.shape == pixels.shape
    assert changed.dtype == np.uint8
    assert np.abs(changed.astype(int) - pixels).mean() > 0.05
    again = each.change(pixels, np.random.default_rng(1), 1.0)
    np.testing.assert_array_equal(changed, again)
    np.testing.assert_array_equal(each.change(pixels, np.random.default_rng(1), 0.0), pixels)
    np.testing.assert_array_equal(pixels, kept)


@pytest.mark.parametrize("ring", [0, 1, 2])
def test_one_ring_of_the_spectrum_is_scaled_and_the_mean_stays(ring: int) -> None:
    pixels = (photo() * 0.2 + 100).astype(
        np.uint8
    )  # far from 0 and 255, so that nothing is clipped
    changed = scale_ring(pixels, np.random.default_rng(0), 1.0, ring)
    before, after = (np.fft.fft2(x[..., 1].astype(float)) for x in (pixels, changed))
    height, width = pixels.shape[:2]
    seen = set()
    for y, x in np.ndindex(height, width):
        radius = np.hypot(min(y, height - y) / height, min(x, width - x) / width)
        if abs(before[y, x]) < 2000:
            continue  # rounding to whole levels would change these too much
        expected = min(int(radius * 6 + 1e-9), 2)
        factor = abs(after[y, x]) / abs(before[y, x])
        if (y, x) != (0, 0) and expected == ring:
            seen.add(round(float(factor), 1))
        else:
            assert factor == pytest.approx(1, abs=0.05)
    if ring == 0:  # this image has hardly any amplitude in the other rings
        assert seen in ({0.5}, {1.5})


def test_hue_turns_colours_and_keeps_grey() -> None:
    hue = next(each for each in INTERVENTIONS if each.name == "hue")
    colours = np.array([[[90, 90, 90], [120, 60, 60]]], np.uint8)
    turned = hue.change(
        colours, np.random.default_rng(0), 3.0
    )  # half a turn, which gives the complement
    np.testing.assert_allclose(turned[0, 0], [90, 90, 90], atol=1)
    np.testing.assert_allclose(turned[0, 1], [40, 100, 100], atol=1)


def test_the_search_is_that_of_the_metrics() -> None:
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((60, 8)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    labels = np.sort(rng.integers(0, 7, 60))
    itself = np.arange(60)[:, None]
    found = _search(rows[None], rows, labels, labels, itself)
    expected = retrieval_metrics(rows, labels, ks=(1,), nmi=False)
    assert found.hit.mean() == pytest.approx(expected["R@1"])
    assert found.precision.mean() == pytest.approx(expected["MAP@R"])
    assert np.array_equal(found.margin < 0, found.hit)
    assert not np.any(found.first[0] == np.arange(60))
    # Leaving out more images is the same as a search in a gallery without them.
    without = _search(rows[None, :1], rows, labels, labels[:1], np.array([[0, 1, 59]]))
    kept = [n for n in range(60) if n not in (0, 1, 59)]
    order = sorted(kept, key=lambda n: -float(rows[n] @ rows[0]))
    right = [labels[n] == labels[0] for n in order]
    total = sum(right)
    precisions = [sum(right[: k + 1]) / (k + 1) for k in range(total) if right[k]]
    assert without.first[0, 0] == order[0]
    assert without.precision[0, 0] == pytest.approx(sum(precisions) / total)


def small_audit(hits: dict[str, NDArray[np.bool_]], labels: NDArray[np.intp]) -> Audit:
    """An audit with given hits (rows, Q). The rest of it does not matter."""
    split = Split.of(
        LabelledImage(Path(f"{label}/{n}.png"), f"{label}", "test")
        for n, label in enumerate(labels.tolist())
    )
    count = len(labels)
    found = {
        name: QueryResults(
            np.zeros(hit.shape, int), hit, hit.astype(float), np.where(hit, -1.0, 1.0)
        )
        for name, hit in hits.items()
    }
    masks = Masks("none", lambda _, image: image)
    queries = np.arange(count)
    donors = np.stack([queries, queries], axis=1)
    return Audit(split, queries, donors, found, AuditImages(split, masks, 64, 0))


def test_figures_of_an_audit_by_hand() -> None:
    labels = np.repeat(np.arange(5), 4)
    rng = np.random.default_rng(0)
    hit = rng.random((len(ROWS), 20)) < 0.5
    hit[0, :16] = True
    hit[0, 16:] = False  # R@1 is 0.8
    made = small_audit({"one": hit, "same": hit.copy()}, labels)
    found = summarise(made)["one"]
    recall = {row: hit[n].mean() for n, row in enumerate(ROWS)}
    assert found.rows[CLEAN].value == pytest.approx(0.8)
    assert found.swap.value == pytest.approx(recall[OTHER] / 0.8)
    assert found.gap.value == pytest.approx(recall[OWN] - recall[OTHER])
    nuisances = ["low frequencies", "middle frequencies", "high frequencies", "brightness", "tint"]
    nuisances += ["blur", "jpeg", "crop", "shift"]
    assert counted(colour=False) == nuisances
    assert found.nuisances.value == pytest.approx(np.mean([recall[n] / 0.8 for n in nuisances]))
    assert found.chance == pytest.approx(2 / 17)  # the query and its two donors cannot be found
    assert found.nuisances.low < found.nuisances.value < found.nuisances.high
    # Equal models have an interval of length 0, because the same classes are drawn for both.
    assert summarise(made)["same"].difference == (0, 0, 0)
    with_colour = summarise(made, colour=True)["one"]
    expected = np.mean([recall[each.name] / 0.8 for each in INTERVENTIONS])
    assert with_colour.nuisances.value == pytest.approx(expected)


def test_wrong_hits_by_background_by_hand() -> None:
    """Six images of two classes. Every hit is image 0, whose background is a meadow."""
    labels = np.array([0, 0, 0, 1, 1, 1])
    hit = np.zeros((len(ROWS), 6), bool)
    hit[:, 1:3] = True  # image 0 is a correct hit for 1 and 2, and a wrong one for 3, 4 and 5
    hit[:, 0] = True
    made = small_audit({"one": hit}, labels)
    names = ["meadow", "sea", "sea", "meadow", "sea", "night"]
    share = summarise(made, backgrounds=names)["one"].same_background
    assert share is not None
    assert share.wrong == 3
    assert share.share == pytest.approx(1 / 3)  # of 3, 4 and 5, only 3 is before a meadow
    # In the other class, one image has the background of 3 (meadow), two have that of 4 (sea), and
    # none has that of 5 (night).
    assert share.chance == pytest.approx((1 / 3 + 2 / 3 + 0) / 3)
    assert summarise(made)["one"].same_background is None


def test_without_any_hit_the_kept_share_is_unknown() -> None:
    made = small_audit({"one": np.zeros((len(ROWS), 6), bool)}, np.array([0, 0, 0, 1, 1, 1]))
    found = summarise(made)["one"]
    assert np.isnan(found.nuisances.value)
    assert found.nuisances.percent() == "unknown"
    assert failures(made, "one").width > 0  # it says that no query was lost


def test_a_model_of_backgrounds_is_recognised(pictures: Path) -> None:
    """It embeds only the frame of an image, so only another background changes its embeddings."""

    def frame(pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        edge = np.concatenate(
            [pixels[:, 0], pixels[:, -1], pixels[:, :, 0], pixels[:, :, -1]], axis=1
        )
        colours = np.sort(edge.astype(np.float32), axis=1).reshape(len(pixels), -1)
        colours -= colours.mean(axis=1, keepdims=True)
        # The small constant is for plain grey frames, whose norm is 0.
        return colours / (np.linalg.norm(colours, axis=1, keepdims=True) + 1e-6)

    data = open_dataset("demo", pictures)
    names = background_names(data, data.test)
    model = Model("frame", Preprocess(resize=64, crop=64), frame)
    found = measure([model], data.test, open_masks(data), names, limit=100, size=64)
    each = found.found["frame"]
    excluded = np.column_stack([found.queries, found.donors])
    assert not np.any(each.first[:, :, None] == excluded[None])  # in any row
    assert np.all(found.gallery.labels[found.donors[:, 0]] == found.labels)
    assert not np.any(found.gallery.labels[found.donors[:, 1]] == found.labels)
    assert names is not None
    shown = np.array(names)
    assert not np.any(shown[found.donors[:, 1]] == shown[found.queries])
    summary = summarise(found, backgrounds=names)["frame"]
    for share in (summary.same_background, summary.pasted_background):
        assert share is not None
        assert share.share > 0.5 > 0.2 > share.chance
    same = np.mean(each.first[ROWS.index(NO_OBJECT)] == each.first[0])
    swapped = np.mean(each.first[ROWS.index(OTHER)] == each.first[0])
    assert same > 0.5 > 0.2 > swapped


def test_an_audit_of_two_models_can_be_repeated(
    runs: dict[str, Path], pictures: Path, call: Call, tmp_path: Path
) -> None:
    arguments = ("--data", pictures, "--limit", 24, "--size", 64)
    code, said, complaint = call(
        *("audit", runs["base"], runs["couce"] / "best.pt", "demo"),
        *(*arguments, "--out", tmp_path / "a"),
    )
    assert code == 0, complaint
    assert "kept under nuisances" in said
    found = json.loads((tmp_path / "a" / "audit.json").read_text())
    models = found["values"]["models"]
    assert len(models) == 2
    assert found["values"]["gallery"] == 128
    assert len(found["pictures"]) == 3  # the chart, and the failures of each
    for each in models.values():
        assert list(each["rows"]) == list(ROWS)
        assert all(
            0 <= row["low"] <= row["value"] <= row["high"] <= 1 for row in each["rows"].values()
        )
    # With another order of the models, only the differences between them change.
    call(
        *("audit", runs["couce"] / "best.pt", runs["base"], "demo"),
        *(*arguments, "--out", tmp_path / "b"),
    )
    again = json.loads((tmp_path / "b" / "audit.json").read_text())["values"]["models"]
    for name, each in models.items():
        assert again[name]["rows"] == each["rows"]
        assert again[name]["kept"] == each["kept"]


def test_any_onnx_model_can_be_audited(
    make_model: Callable[..., Path], pictures: Path, call: Call, tmp_path: Path
) -> None:
    """The data set has neither masks nor names of backgrounds."""
    ours, foreign = make_model("ours.onnx"), make_model("foreign.onnx", describe=False)
    arguments = ("--limit", 8, "--gallery", 40, "--size", 32, "--out", tmp_path / "out")
    folder = pictures / "test"
    code, _, complaint = call("audit", ours, foreign, folder, *arguments)
    assert code == 2
    assert "--preprocess" in complaint
    preparation = ("--preprocess", "resize=16", "--preprocess", "crop=16")
    code, _, complaint = call("audit", ours, foreign, folder, *arguments, *preparation)
    assert code == 0, complaint
    stored = json.loads((tmp_path / "out" / "audit.json").read_text())["values"]
    assert stored["masks"].startswith("estimated")
    assert stored["gallery"] == 40  # whole classes of four images
    one, other = stored["models"].values()
    assert one["rows"] == other["rows"]  # the same model, with and without a description
    assert one["same_background"] is None


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["demo"], "names no model"),
        (["RUN", "demo", "cub"], "one data set"),
        (["ABSENT.pt", "demo"], "no checkpoint at"),
        (["RUN", "dmeo"], "did you mean 'demo'"),
        (["RUN", "RUN", "demo"], "named twice"),
    ],
)
def test_wrong_calls_are_one_sentence(
    arguments: list[str],
    words: str,
    runs: dict[str, Path],
    call: Call,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    given = [str(runs["couce"]) if each == "RUN" else each for each in arguments]
    code, _, complaint = call("audit", *given)
    assert code == 2
    assert words in complaint
    assert complaint.count("\n") == 1


def test_images_that_cannot_be_read_are_left_out(
    runs: dict[str, Path], call: Call, tmp_path: Path
) -> None:
    rng = np.random.default_rng(0)
    for half, label in (("train", "a"), ("train", "b"), ("test", "c"), ("test", "d")):
        folder = tmp_path / "set" / half / label
        folder.mkdir(parents=True)
        for n in range(4):
            Image.fromarray(rng.integers(0, 255, (40, 30, 3), np.uint8)).save(folder / f"{n}.png")
    (tmp_path / "set" / "test" / "c" / "1.png").write_bytes(b"no image")
    code, _, complaint = call("audit", runs["couce"], tmp_path / "set", "--out", tmp_path / "out")
    assert code == 0
    assert "left out" in complaint
    stored = json.loads((tmp_path / "out" / "audit.json").read_text())["values"]
    assert (stored["gallery"], stored["queries"]) == (7, 7)
