"""The files in examples/ run as they are, and the plug-ins in it work."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
SMALL = ["--set", "dim=16", "--set", "batch_classes=6", "--set", "batch_images=2", "--epochs", "1"]


def run(folder: Path, *words: object, **options: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *map(str, words)]
    done: subprocess.CompletedProcess[str] = subprocess.run(  # type: ignore[call-overload]
        command, cwd=folder, capture_output=True, text=True, check=False, **options
    )
    return done


def couce(folder: Path, *words: object, **options: object) -> subprocess.CompletedProcess[str]:
    return run(folder, "-m", "couce", *words, **options)


def test_all_steps(tmp_path: Path) -> None:
    done = run(tmp_path, EXAMPLES / "road.py")
    assert done.returncode == 0, done.stderr
    lines = dict(line.split(": ", 1) for line in done.stdout.splitlines() if ": " in line)
    assert lines["cosine between torch and ONNX, at least"] == "1.0"
    assert lines["embeddings"] == "(3, 128)"
    assert (tmp_path / lines["written"]).is_file()
    assert len(json.loads(lines["labels found"].replace("'", '"'))) == 3


def test_a_loss_of_ones_own(pictures: Path, tmp_path: Path) -> None:
    train = ["train", "demo", "--data", pictures, *SMALL]
    plugin = ["--plugin", EXAMPLES / "my_losses.py"]
    done = couce(tmp_path, *train, "--loss", "my-softmax")
    assert done.returncode == 2
    assert "unknown loss 'my-softmax'" in done.stderr

    done = couce(tmp_path, *train, *plugin, "--loss", "my-softmax", "--out", "run")
    assert done.returncode == 0, done.stderr
    noted = json.loads((tmp_path / "run/environment.json").read_text())["plugins"]
    assert list(noted) == ["my_losses.py"]
    # Commands that need the loss report that it is missing. `evaluate` works without it.
    again = ["train", "demo", "--resume", "run", "--epochs", "2", "--data", pictures]
    for words in (again, ["analyze", "dictionary", "run", "--images", "40"]):
        done = couce(tmp_path, *words)
        assert done.returncode == 2
        assert "was made with my_losses.py, which is not loaded; add --plugin" in done.stderr
        done = couce(tmp_path, *words, *plugin)
        assert done.returncode == 0, done.stderr
    done = couce(tmp_path, "evaluate", "run/best.pt", "demo", "--data", pictures)
    assert done.returncode == 0, done.stderr


def test_a_backbone_of_ones_own(pictures: Path, tmp_path: Path) -> None:
    plugin = ["--plugin", EXAMPLES / "my_backbone.py"]
    chosen = ["--backbone", "my-net", "--set", "resize=64", "--set", "crop=56"]
    train = ["train", "demo", "--data", pictures, *SMALL, *chosen, "--out", "run"]
    done = couce(tmp_path, *train, *plugin)
    assert done.returncode == 0, done.stderr
    done = couce(tmp_path, "export", "run/best.pt", "model.onnx")
    assert done.returncode == 2
    assert "my_backbone.py, which is not loaded" in done.stderr
    done = couce(tmp_path, "export", "run/best.pt", "model.onnx", *plugin)
    assert done.returncode == 0, done.stderr
    # The exported model does not need the plug-in.
    done = couce(tmp_path, "evaluate", "model.onnx", "demo", "--data", pictures)
    assert done.returncode == 0, done.stderr


def test_a_data_set_of_ones_own(pictures: Path, tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    for path in sorted((pictures / "test").rglob("*.png")):
        name = f"{path.parent.name.replace('-', '')}_{path.name}"
        (tmp_path / "photos" / name).write_bytes(path.read_bytes())
    plugin = ["--plugin", EXAMPLES / "my_dataset.py"]
    done = couce(tmp_path, "data", "check", "by-name", "--data", "photos", *plugin)
    assert done.returncode == 0, done.stderr
    assert "train 16 classes" in done.stdout


def test_a_package_offers_entry_points(pictures: Path, tmp_path: Path) -> None:
    """Imitates an installed package: a module on the path with its metadata beside it."""
    source = (EXAMPLES / "my_losses.py").read_text()
    (tmp_path / "my_package.py").write_text(source.replace('LOSSES["my-softmax"] = MySoftmax', ""))
    about = tmp_path / "my_package-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: my-package\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[couce.losses]\nshipped = my_package:MySoftmax\n")
    there = {**os.environ, "PYTHONPATH": str(tmp_path)}
    train = ["train", "demo", "--data", pictures, *SMALL, "--loss", "shipped", "--out", "run"]
    done = couce(tmp_path, *train, env=there)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "run/environment.json").read_text())["plugins"] == {
        "my-package": "1.0"
    }


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "cannot be read: No such file"),
        ("1/0", "cannot be loaded: ZeroDivisionError"),
        ("def", "cannot be loaded: SyntaxError"),
    ],
)
def test_a_wrong_plugin_is_one_sentence(content: str | None, words: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "mine.py").write_text(content)
    done = couce(tmp_path, "train", "demo", "--plugin", "mine.py")
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr
