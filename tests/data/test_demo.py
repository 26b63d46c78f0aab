import signal
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from couce.client import Client
from couce.data.demo import draw, examples, write_demo
from couce.data.drawing import BACKGROUNDS, LIGHTS, THINGS
from couce.errors import CouceError


def share_of_the_commonest_surroundings(confounding: float, half: str) -> float:
    """The mean share of a class's images with its most common background and light."""
    by_class: dict[str, list[tuple[str, str]]] = {}
    for example in examples(confounding, per_class=40, seed=0):
        if example.half == half:
            by_class.setdefault(example.label, []).append((example.background, example.light))
    shares = [Counter(seen).most_common(1)[0][1] / len(seen) for seen in by_class.values()]
    return float(np.mean(shares))


def test_halves_have_different_classes_of_all_kinds() -> None:
    plan = examples(0.9, per_class=2, seed=0)
    halves = {half: {e.label for e in plan if e.half == half} for half in ("train", "test")}
    assert len(halves["train"]) == len(halves["test"]) == 32
    assert not halves["train"] & halves["test"]
    assert {label.split("-")[0] for label in halves["test"]} == set(THINGS)


def test_confounding_changes_only_the_training_half() -> None:
    shares = [share_of_the_commonest_surroundings(c, "train") for c in (0.0, 0.5, 1.0)]
    assert shares[0] < 0.15
    assert shares[1] == pytest.approx(0.5, abs=0.05)
    assert shares[2] == 1.0
    assert share_of_the_commonest_surroundings(1.0, "test") < 0.15


def test_training_classes_have_their_own_background_and_light() -> None:
    own = {e.label: (e.background, e.light) for e in examples(1.0, 1, 0) if e.half == "train"}
    assert len(set(own.values())) == 32
    assert {background for background, _ in own.values()} == set(BACKGROUNDS)
    assert {light for _, light in own.values()} == set(LIGHTS)


def test_drawing_is_repeatable_and_images_differ() -> None:
    plan = examples(0.9, per_class=2, seed=0)
    first, second = np.asarray(draw(plan[0])), np.asarray(draw(plan[1]))
    assert first.shape == (64, 64, 3)
    assert np.array_equal(first, np.asarray(draw(plan[0])))
    assert not np.array_equal(first, second)
    assert plan != examples(0.9, per_class=2, seed=1)


def test_the_same_set_is_written_once_and_another_one_replaces_it(tmp_path: Path) -> None:
    folder = write_demo(tmp_path / "set", per_class=2)
    files = sorted(folder.rglob("*.png"))
    assert len(files) == 128
    with Image.open(files[0]) as image:
        assert image.size == (64, 64)
    before = files[0].stat().st_mtime_ns
    write_demo(folder, per_class=2)
    assert files[0].stat().st_mtime_ns == before
    write_demo(folder, per_class=1)
    assert len(sorted(folder.rglob("*.png"))) == 64


def test_several_processes_may_draw_the_same_set(tmp_path: Path) -> None:
    with ThreadPoolExecutor(3) as threads:
        folders = list(threads.map(lambda _: write_demo(tmp_path / "set", per_class=2), range(3)))
    assert {str(folder) for folder in folders} == {str(tmp_path / "set")}
    assert len(sorted((tmp_path / "set").rglob("*.png"))) == 128
    assert [path.name for path in tmp_path.iterdir()] == ["set"]


@pytest.mark.parametrize("recipe", [None, "", '{"cake": 1}', "[]"])
def test_any_other_folder_is_left_unchanged(tmp_path: Path, recipe: str | None) -> None:
    for folder in ("train", "test"):
        (tmp_path / folder).mkdir()
    (tmp_path / "train" / "holiday.png").write_bytes(b"dear")
    if recipe is not None:
        (tmp_path / "recipe.json").write_text(recipe)
    with pytest.raises(CouceError, match="is not a demo set; name another folder"):
        write_demo(tmp_path)
    assert (tmp_path / "train" / "holiday.png").read_bytes() == b"dear"


def test_the_command_runs_all_steps(tmp_path: Path) -> None:
    command = [sys.executable, "-u", "-m", "couce", "demo", "--epochs", "1", "--port", "0"]
    process = subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert process.stdout is not None
    said = []
    for line in process.stdout:
        said.append(line)
        if line.startswith("Serving at"):
            image = next((tmp_path / "demo" / "pictures" / "test").rglob("*.png"))
            hits = Client(line.split()[2]).search(image, k=1).hits
            assert hits[0].label == image.parent.name
            process.send_signal(signal.SIGINT)
    assert process.wait() == 0
    process.stdout.close()
    assert "base loss" in "".join(said)
    assert "MAP@R" in "".join(said)
    assert said[-1].startswith("Next: ")
    with Image.open(tmp_path / "demo" / "pictures.png") as sheet:
        assert len(sheet.resize((32, 32)).getcolors(1024) or []) > 100
