"""Every analysis of a trained run, started from the command line."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from couce.checkpoint import load
from couce.data.base import Split
from couce.errors import CouceError
from couce.train.figures.runs import embed_split, open_run
from couce.train.figures.steps import Case, peak_memory

Call = Callable[..., tuple[int, str, str]]


def values(folder: Path, name: str) -> Any:
    return json.loads((folder / f"{name}.json").read_text())["values"]


def test_fourier(runs: dict[str, Path], call: Call, tmp_path: Path) -> None:
    code, said, _ = call("analyze", "fourier", runs["couce"], "--images", 40, "--out", tmp_path)
    assert code == 0
    assert "Next: open" in said
    found = values(tmp_path, "fourier")["changes"]
    assert list(found) == ["custom", "linear", "exponential", "uniform"]
    for changes in found.values():
        assert all(each["phase"] < 1e-5 < each["amplitude"] for each in changes.values())
    assert found["custom"]["ring 1"]["amplitude"] < found["uniform"]["ring 1"]["amplitude"]
    # The draws are the same, and the outermost ring has the same strength in every schedule.
    outermost = found["uniform"]["ring 3"]["amplitude"]
    assert found["custom"]["ring 3"]["amplitude"] == pytest.approx(outermost, rel=1e-4)


def test_semantic(runs: dict[str, Path], call: Call, tmp_path: Path) -> None:
    code, _, _ = call("analyze", "semantic", runs["couce"], "--images", 40, "--out", tmp_path)
    assert code == 0
    kept = values(tmp_path, "semantic")["kept"]
    assert kept["uniform"]["cosine"] < kept["custom"]["cosine"] < 1
    assert all(0 <= value <= 1 + 1e-9 for each in kept.values() for value in each.values())


def test_gradcam(runs: dict[str, Path], call: Call, tmp_path: Path) -> None:
    image = open_run(runs["couce"]).data.test.paths[3]
    code, said, _ = call(
        *("analyze", "gradcam", runs["base"], runs["couce"], "--image", image),
        *("--images", 20, "--out", tmp_path),
    )
    assert code == 0, said
    found = values(tmp_path, "gradcam")
    assert found["images"] == [str(image)]
    assert found["masks"] == "drawn with the images"
    assert set(found["shares"]["base"]) == {"m", "area"}  # this run has no dictionary
    assert set(found["shares"]["couce"]) == {"m", "z", "area"}
    assert 0 < found["shares"]["couce"]["m"] < 1
    assert Image.open(tmp_path / "gradcam.png").width > 4 * 112


def test_tsne_and_its_repetition(runs: dict[str, Path], call: Call, tmp_path: Path) -> None:
    for folder in ("a", "b"):
        code, _, _ = call(
            *("analyze", "tsne", runs["base"], runs["couce"], "--classes", 3),
            *("--images", 12, "--out", tmp_path / folder),
        )
        assert code == 0
    found = values(tmp_path / "a", "tsne")
    assert len(found["classes"]) == 3
    assert [len(points) for points in found["points"].values()] == [12, 12]
    assert found == values(tmp_path / "b", "tsne")


def test_grid(runs: dict[str, Path], call: Call, tmp_path: Path) -> None:
    code, _, _ = call(
        *("analyze", "grid", runs["base"], runs["couce"], "--queries", 3),
        *("--images", 60, "--out", tmp_path),
    )
    assert code == 0
    found = values(tmp_path, "grid")
    for name, path in runs.items():
        rows, split = _embedded(path, 60)
        for each in found["runs"][name]["queries"]:
            query = [str(p) for p in split.paths].index(each["query"])
            order = sorted(range(len(rows)), key=lambda n: -float(rows[n] @ rows[query]))
            expected = [str(split.paths[n]) for n in order if n != query][:5]
            assert each["found"] == expected
            own = Path(each["query"]).parent.name
            assert each["right"] == [Path(path).parent.name == own for path in each["found"]]


def test_a_grid_of_differing_queries_needs_runs_that_differ(
    runs: dict[str, Path], call: Call, tmp_path: Path
) -> None:
    twin = shutil.copytree(runs["base"], tmp_path / "twin")
    code, _, complaint = call(
        *("analyze", "grid", runs["base"], twin, "--differing"),
        *("--images", 60, "--out", tmp_path),
    )
    assert code == 2
    assert "leave out --differing" in complaint


def _embedded(path: Path, images: int) -> tuple[np.ndarray, Split]:
    from couce.train.figures.runs import sample

    run = open_run(path)
    return embed_split(run, sample(run.data.test, images))


def test_dictionary(runs: dict[str, Path], call: Call, tmp_path: Path) -> None:
    code, _, _ = call("analyze", "dictionary", runs["couce"], "--images", 40, "--out", tmp_path)
    assert code == 0
    (found,) = values(tmp_path, "dictionary").values()
    assert found["capacity"] == 64
    assert len(found["gate"]) == 16
    assert list(found["ranks"]) == ["16", "32", "64"]
    assert all(1 <= rank <= 16 for rank in found["ranks"].values())
    assert 1 <= found["attended"] <= 64
    code, _, complaint = call("analyze", "dictionary", runs["base"], "--out", tmp_path)
    assert code == 2
    assert "the dictionary of base is missing" in complaint


def test_confounding(runs: dict[str, Path], call: Call, tmp_path: Path) -> None:
    code, _, _ = call("analyze", "confounding", runs["base"], runs["couce"], "--out", tmp_path)
    assert code == 0
    found = values(tmp_path, "confounding")
    assert found["base"]["gate"] is None
    assert set(found["couce"]["gradients"]) == {"dml", "orth", "inv", "cov"}


def test_overhead(call: Call, tmp_path: Path) -> None:
    code, _, complaint = call(
        *("analyze", "overhead", "--backbone", "tiny", "--batch", 6, "--pixels", 32),
        *("--rounds", 2, "--images", 60, "--no-memory", "--out", tmp_path),
    )
    assert code == 0, complaint
    found = values(tmp_path, "overhead")
    assert found["steps"] == 10
    rows = found["rows"]
    assert list(rows) == [
        *("base", "+ ODBA", "+ MSRCI"),
        *(f"CouCE, K = {k}" for k in (512, 2048, 4096, 8192)),
    ]
    assert rows["base"]["ratio"] == rows["base"]["bound"] == 1
    # Attention multiplies each of 6 embeddings twice with K rows of 512. The operations of the base
    # step follow from the bounds of two values of K. ODBA alone must add the same operations.
    more = rows["CouCE, K = 8192"]["bound"] - rows["CouCE, K = 4096"]["bound"]
    base = 2 * 2 * 6 * 4096 * 512 / more
    assert rows["+ ODBA"]["bound"] - 1 == pytest.approx(2 * 2 * 6 * 2048 * 512 / base, rel=0.05)
    assert all(each["inference"] > 0 for each in rows.values())


def test_memory_is_that_of_a_process_of_its_own() -> None:
    memory = peak_memory(Case("tiny", 6, 32), "CouCE, K = 512")
    assert memory is not None
    assert 50e6 < memory < 5e9
    with pytest.raises(CouceError, match=r"a step of base failed: .*unknown backbone 'tny'"):
        peak_memory(Case("tny", 6, 32), "base")


def test_one_page_of_several(runs: dict[str, Path], call: Call, tmp_path: Path) -> None:
    call("analyze", "fourier", runs["couce"], "--images", 8, "--out", tmp_path / "a")
    call("analyze", "semantic", runs["couce"], "--images", 8, "--out", tmp_path / "b")
    page = tmp_path / "page.html"
    code, said, _ = call("analyze", "report", tmp_path / "a", tmp_path / "b", "--out", page)
    assert code == 0
    assert str(page) in said.replace("\n", "")
    assert page.read_text().count("<section") == 2


def test_the_data_set_may_have_moved(
    runs: dict[str, Path], pictures: Path, call: Call, tmp_path: Path
) -> None:
    moved = tmp_path / "elsewhere"
    moved.symlink_to(pictures)
    arguments = ("--images", 8, "--out", tmp_path / "out", "--data", moved)
    code, _, _ = call("analyze", "fourier", runs["couce"], *arguments)
    assert code == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["fourier", "ABSENT"], "there is no checkpoint at"),
        (["tsne", "RUN", "RUN"], "is named twice"),
        (["fourier", "RUN", "--data", "ABSENT"], "no data set at"),
        (["gradcam", "RUN", "--layer", "lats"], "did you mean 'last'"),
        (["gradcam", "RUN", "--image", "ABSENT"], "is not an image of the test half"),
        (["gradcam", "RUN", "--masks", "ABSENT"], "no folder of masks"),
        (["report", "ABSENT"], "there is no folder"),
        (["overhead", "--backbone", "tny"], "did you mean 'tiny'"),
    ],
)
def test_wrong_calls_are_sentences(
    arguments: list[str], words: str, runs: dict[str, Path], call: Call, tmp_path: Path
) -> None:
    places = {"RUN": str(runs["couce"]), "ABSENT": str(tmp_path / "absent")}
    code, _, complaint = call(
        "analyze", *(places.get(a, a) for a in arguments), "--out", tmp_path / "out"
    )
    assert code == 2
    assert words in complaint
    assert complaint.startswith("couce: ")
    assert complaint.count("\n") == 1


def test_a_checkpoint_that_is_no_run(runs: dict[str, Path], call: Call, tmp_path: Path) -> None:
    from couce import checkpoint

    content = load(runs["couce"] / "last.pt")
    bare = {key: content[key] for key in ("model", "network")}
    checkpoint.save(tmp_path / "bare.pt", bare)
    code, _, complaint = call("analyze", "fourier", tmp_path / "bare.pt", "--out", tmp_path)
    assert code == 2
    assert "is not a run of `couce train`" in complaint
