"""The commands that must work in the serving installation ``couce[cpu]``, without torch."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

HERE = Path(__file__).parent


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(HERE / "serving_only.py"), *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.fixture
def photos(tmp_path: Path, make_model: Callable[..., Path]) -> Path:
    """A folder with model.onnx and photos/: four classes of three images. One is called train."""
    make_model()
    rng = np.random.default_rng(0)
    for label in ("bus", "car", "tram", "train"):
        for number in range(3):
            path = tmp_path / "photos" / label / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(rng.integers(0, 256, (24, 24, 3), np.uint8)).save(path)
    return tmp_path


def test_torch_is_not_there(tmp_path: Path) -> None:
    done = run(tmp_path, "train", "demo")
    assert done.returncode == 2
    assert done.stderr.startswith("couce: this command needs torch, which is not installed")


def test_embeddings_are_evaluated(photos: Path) -> None:
    done = run(photos, "embed", "photos", "-o", "vectors.npz")
    assert done.returncode == 0, done.stderr
    done = run(photos, "evaluate", "vectors.npz")
    assert done.returncode == 0, done.stderr
    assert 0 <= json.loads((photos / "vectors.metrics.json").read_text())["R@1"] <= 1


def test_a_model_is_evaluated_on_a_folder(photos: Path) -> None:
    done = run(photos, "evaluate", "model.onnx", "photos")
    assert done.returncode == 0, done.stderr
    assert set(json.loads((photos / "model.metrics.json").read_text())) == {
        *("R@1", "R@2", "R@4", "R@8", "RP", "MAP@R", "NMI")
    }


def test_a_checkpoint_names_the_extra_that_is_missing(photos: Path) -> None:
    (photos / "best.pt").write_bytes(b"")
    done = run(photos, "evaluate", "best.pt", "photos")
    assert done.returncode == 2
    assert "pip install 'couce[train]'" in done.stderr
