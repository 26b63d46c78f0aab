"""Real trainings: killed and resumed, in two processes, and with broken input."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from couce import checkpoint
from couce.data import open_dataset
from couce.data.demo import write_demo
from couce.data.images import ImageStore
from couce.errors import CouceError
from couce.evaluate import evaluate_network
from couce.train.loop import Step, Training, network_of
from couce.train.processes import Processes
from couce.train.run import Data, run_training
from couce.train.settings import TrainSettings, parse_assignments, resolve

# An epoch takes about a second.
SMALL = {"dim": 16, "batch_classes": 6, "batch_images": 2, "epochs": 3, "evaluate_every": 1}


Call = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_demo(tmp_path_factory.mktemp("data") / "demo", per_class=3)


def arguments(pictures: Path, out: Path, **settings: Any) -> list[str]:
    # Every part of the method is in use.
    given = {**SMALL, "backgrounds.share": 0.5, **settings}
    chosen = [f"--set={key}={value}" for key, value in given.items()]
    return ["-m", "couce", "train", "demo", "--data", str(pictures), "--out", str(out), *chosen]


def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


def tensors(content: Any, name: str = "") -> dict[str, torch.Tensor]:
    """All tensors of a checkpoint, by their paths in it."""
    if isinstance(content, torch.Tensor):
        return {name: content}
    pairs = (
        content.items()
        if isinstance(content, dict)
        else enumerate(content)
        if isinstance(content, list)
        else ()
    )
    found: dict[str, torch.Tensor] = {}
    for key, value in pairs:
        found |= tensors(value, f"{name}/{key}")
    return found


def test_a_run_folder_holds_everything(pictures: Path, tmp_path: Path) -> None:
    done = run([sys.executable, *arguments(pictures, tmp_path / "run")])
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "run"
    assert {p.name for p in folder.iterdir()} >= {
        "best.pt",
        "config.toml",
        "environment.json",
        "last.pt",
        "log.jsonl",
        "result.json",
    }
    assert list(folder.glob("events.out.tfevents.*"))
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in lines] == [1, 2, 3]
    assert set(lines[0]["parts"]) == {"dml", "orth", "inv", "cov"}
    result = json.loads((folder / "result.json").read_text())
    assert result["choice"] == "test R@1, as the field does"
    assert result["last"]["epoch"] == 3
    best = max(line["metrics"]["R@1"] for line in lines)
    assert result["best"]["metrics"]["R@1"] == pytest.approx(best)
    assert done.stdout.splitlines()[-1].startswith("Next: couce evaluate")

    # Evaluating the checkpoint gives the same metrics as the end of the run.
    out = folder / "again.json"
    command = [
        "-m",
        "couce",
        "evaluate",
        str(folder / "best.pt"),
        "demo",
        "--data",
        str(pictures),
        "--out",
        str(out),
    ]
    assert run([sys.executable, *command]).returncode == 0
    assert json.loads(out.read_text()) == pytest.approx(result["best"]["metrics"])


def test_killed_and_resumed_equals_uninterrupted_bit_for_bit(
    pictures: Path, tmp_path: Path
) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert run([sys.executable, *arguments(pictures, whole, average=0.5)]).returncode == 0

    again = ["train", "demo", "--data", str(pictures), "--resume", str(killed)]
    driver = str(Path(__file__).with_name("killed.py"))
    for epoch, step in ((1, 3), (2, 0)):  # complete epochs, and the step that is killed
        typed = again if killed.exists() else arguments(pictures, killed, average=0.5)[2:]
        done = run([sys.executable, driver, str(epoch), str(step), *typed])
        assert done.returncode == -signal.SIGKILL, done.stderr
        assert _epochs(killed) == epoch
    done = run([sys.executable, "-m", "couce", *again])
    assert done.returncode == 0, done.stderr

    one, other = (checkpoint.load(folder / "last.pt") for folder in (whole, killed))
    assert other["epoch"] == 3
    expected, actual = tensors(one), tensors(other)
    assert len(expected) > 100
    assert expected.keys() == actual.keys()
    for name, value in expected.items():
        assert torch.equal(value, actual[name]), name


def _epochs(folder: Path) -> int:
    path = folder / "log.jsonl"
    return len(path.read_text().splitlines()) if path.exists() else 0


@pytest.mark.parametrize("statistics", ["true", "false"])
def test_two_processes_equal_one(pictures: Path, tmp_path: Path, statistics: str) -> None:
    """With the same global batch, 24 steps give the same losses and weights.

    This uses float64: where a gradient is close to zero, Adam turns any rounding error into a whole
    step. In float32, some weights then differ by more than 1e-4, although all gradients are right.
    """
    options = {
        "freeze_statistics": statistics,
        "epochs": 3,  # of 8 steps each
        "evaluate_every": 3,
        "lr": 1e-4,
        "proxy_lr": 1e-3,
    }
    one, two = tmp_path / "one", tmp_path / "two"
    script = tmp_path / "couce_in_float64.py"
    script.write_text(
        "import torch; torch.set_default_dtype(torch.float64)\nfrom couce.cli import main; main()"
    )
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    torchrun = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        "2",
        "--standalone",
    ]
    running = [
        subprocess.Popen(
            [*python, str(script), *arguments(pictures, folder, **options)[2:]],
            env=environment,
            stdout=subprocess.DEVNULL,
        )
        for python, folder in (([sys.executable], one), (torchrun, two))
    ]
    assert [process.wait() for process in running] == [0, 0]

    logs = [
        [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
        for folder in (one, two)
    ]
    assert len(logs[0]) == 3
    for a, b in zip(*logs, strict=True):
        assert a["parts"] == pytest.approx(b["parts"], rel=1e-9, abs=1e-9)
    contents = [checkpoint.load(folder / "last.pt") for folder in (one, two)]
    for part in ("network", "objective"):
        for name, value in contents[0][part].items():
            other = contents[1][part][name]
            torch.testing.assert_close(value, other, rtol=1e-9, atol=1e-9, msg=name)


def outcome(folder: Path) -> Any:
    return json.loads((folder / "result.json").read_text())


def settings(**options: Any) -> Any:
    return resolve("demo", options={**SMALL, **options})


def test_not_finite_stops_with_step_parts_and_checkpoint(pictures: Path, tmp_path: Path) -> None:
    with pytest.raises(
        CouceError, match=r"not finite in epoch 1, step \d+ \(dml .*no epoch was completed"
    ):
        run_training(Data("demo", pictures), settings(lr=1e30, proxy_lr=1e30), tmp_path / "run")


def test_dead_images_do_not_stop_a_run(tmp_path: Path) -> None:
    folder = write_demo(tmp_path / "demo", per_class=3)
    for victim in list(folder.rglob("*.png"))[::40]:
        victim.write_bytes(b"no picture")
    with pytest.warns(UserWarning, match="left out: .* is not an image"):
        result = run_training(Data("demo", folder), settings(epochs=1), tmp_path / "run")
    assert np.isfinite(result.metrics["last"]["R@1"])


def test_held_out_classes_choose_the_best(pictures: Path, tmp_path: Path) -> None:
    run_training(Data("demo", pictures), settings(validate_classes=0.25), tmp_path / "run")
    assert outcome(tmp_path / "run")["choice"] == "R@1 of held-out classes"
    content = checkpoint.load(tmp_path / "run" / "last.pt")
    assert len(content["classes"]) == 24
    assert len(content["objective"]["loss.proxies"]) == 24
    assert outcome(tmp_path / "run")["of"] == "test half"


def test_the_held_out_classes_can_be_all_that_is_measured(tmp_path: Path) -> None:
    """The named classes are evaluated with a network that never saw them.

    The test half is not needed: its images are broken here.
    """
    pictures = write_demo(tmp_path / "demo", per_class=3)
    chosen = settings(validate_classes=0.25, validate_from=9, test=False)
    half = open_dataset("demo", pictures).train
    for image in open_dataset("demo", pictures).test.paths:
        image.write_bytes(b"no picture")
    result = run_training(Data("demo", pictures), chosen, tmp_path / "run")
    assert outcome(tmp_path / "run")["of"] == "held-out classes"
    network, preprocess, content = checkpoint.load_network(tmp_path / "run" / "last.pt")
    assert content["classes"] == [*half.names[:8], *half.names[16:]]
    held = half.select(np.isin(half.labels, range(8, 16)))
    found = evaluate_network(
        network, ImageStore(held, preprocess), torch.device("cpu"), ks=(1, 2, 4, 8)
    )
    assert result.metrics["last"] == pytest.approx(found)


def test_classes_that_cannot_be_held_out(pictures: Path, tmp_path: Path) -> None:
    beyond = settings(validate_classes=0.25, validate_from=26)
    with pytest.raises(CouceError, match="set validate_from to 25 at most"):
        run_training(Data("demo", pictures), beyond, tmp_path / "run")
    for options in ({"validate_from": 3}, {"test": False}):
        with pytest.raises(
            CouceError, match=r"needs held-out classes: set validate_classes, such as 0\.3$"
        ):
            TrainSettings.parse(options)


@pytest.mark.parametrize(
    ("dataset", "assignment", "supervise"),
    [
        ("cub", "seed=0", "mixed"),
        ("cub", "freeze_statistics=false", "both"),
        ("demo", "seed=0", "both"),
        ("sop", "freeze_statistics=true", "mixed"),
        ("demo", "msrci.supervise=mixed", "mixed"),
    ],
)
def test_couce_plus_sets_free_statistics_by_clean_maps(
    dataset: str, assignment: str, supervise: str
) -> None:
    chosen = resolve(dataset, method="couce-plus", assignments=parse_assignments([assignment]))
    assert chosen.msrci.supervise == supervise
    # The recipes themselves were not changed.
    assert resolve(dataset, assignments=parse_assignments([assignment])).msrci.scope == "sample"


def test_frozen_stage_and_warm_up(pictures: Path, tmp_path: Path) -> None:
    changed = {}
    for name, options in (("warm-up", {"warmup": 1}), ("stage1", {"freeze": "stage1"})):
        run_training(Data("demo", pictures), settings(epochs=1, **options), tmp_path / name)
        after = checkpoint.load(tmp_path / name / "last.pt")["network"]
        torch.manual_seed(0)
        before = network_of(settings())[0].state_dict()
        changed[name] = {
            key.split(".")[1] if key.startswith("backbone") else "head"
            for key in before
            if "running" not in key
            and "tracked" not in key
            and not torch.equal(before[key], after[key])
        }
    assert changed == {"warm-up": {"head"}, "stage1": {"stage2", "head"}}


def test_the_running_mean_of_the_weights_is_what_is_saved(pictures: Path, tmp_path: Path) -> None:
    chosen = settings(average=0.5, epochs=2)  # of 8 steps each
    momentum = 1 - 1 / 8
    found = open_dataset("demo", pictures)
    _, preprocess = network_of(chosen)
    train_store, test_store = (ImageStore(each, preprocess) for each in (found.train, found.test))
    tmp_path.joinpath("run").mkdir()
    training = Training(chosen, train_store, test_store, tmp_path / "run", Processes())
    mean: dict[str, torch.Tensor] = {}
    for event in training:
        if isinstance(event, Step):
            for name, now in training.network.state_dict().items():
                before = mean.get(name, now)
                mean[name] = momentum * before.double() + (1 - momentum) * now.double()
    saved = checkpoint.load(tmp_path / "run" / "last.pt")
    for name, value in saved["network"].items():
        if value.is_floating_point():  # unlike the number of batches in BatchNorm
            torch.testing.assert_close(value.double(), mean[name], rtol=1e-4, atol=1e-6, msg=name)
    head = [saved[part]["head.weight"] for part in ("network", "learning")]
    assert not torch.allclose(*head)


def test_caches_change_nothing(pictures: Path, tmp_path: Path) -> None:
    weights: list[torch.Tensor] = []
    for cache in ("none", "ram", "disk", "disk"):  # the last run reads what the third one wrote
        folder = tmp_path / f"run-{len(weights)}"
        run_training(Data("demo", pictures), settings(epochs=1, cache=cache, workers=2), folder)
        weights.append(checkpoint.load(folder / "last.pt")["network"]["head.weight"])
    assert all(torch.equal(weights[0], other) for other in weights[1:])


def test_a_full_disk_keeps_the_checkpoint_of_before(tmp_path: Path) -> None:
    path = tmp_path / "last.pt"
    checkpoint.save(path, {"epoch": 1})

    class Full:
        def __reduce__(self) -> Any:
            raise OSError(28, "No space left on device")

    with pytest.raises(CouceError, match=r"No space left on device.*the previous checkpoint"):
        checkpoint.save(path, {"epoch": Full()})
    assert checkpoint.load(path)["epoch"] == 1
    assert [p.name for p in tmp_path.iterdir()] == ["last.pt"]


def test_a_run_goes_on_with_its_own_data(tmp_path: Path) -> None:
    """Options that are not given again keep their values, and do not get their defaults."""
    (tmp_path / "environment.json").write_text(
        json.dumps({"data": vars(Data("demo", None, None, 0.5, True)) | {"root": None}})
    )
    assert Data.of_run(tmp_path, Data("demo")) == Data("demo", None, None, 0.5, True)
    moved = Data.of_run(tmp_path, Data("demo", tmp_path / "there"))
    assert moved == Data("demo", tmp_path / "there", None, 0.5, True)
    for other in (Data("cub"), Data("demo", confounding=0.9), Data("demo", train_classes=3)):
        with pytest.raises(CouceError, match="was started with"):
            Data.of_run(tmp_path, other)
    (tmp_path / "environment.json").write_text("{}")
    with pytest.raises(CouceError, match="does not name its data set"):
        Data.of_run(tmp_path, Data("demo"))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--set", "odba.capasity=3"], "did you mean 'odba.capacity'"),
        (["--set", "odba.capacity"], "key=value"),
        (["--backbone", "resnet51"], "did you mean 'resnet50'"),
        (["--method", "all"], "known: base, odba, msrci, odba+msrci, couce"),
        (["--preset", "gpu"], "known: paper, cpu"),
        (["--device", "cuda"], "couce doctor"),
        (["--config", "absent.toml"], "absent.toml cannot be read"),
        (["--resume", "nowhere"], "nowhere holds no run"),
        (["--loss", "arcface"], "known: proxy-an"),
        (["--validate-classes", "0.99"], "too few"),
    ],
)
def test_wrong_calls_are_sentences(
    options: list[str],
    words: str,
    pictures: Path,
    tmp_path: Path,
    call: Call,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, error = call("train", "demo", "--data", str(pictures), *options)
    assert code == 2
    assert words in error


def test_a_checkpoint_executes_nothing(tmp_path: Path) -> None:
    class Hostile:
        def __reduce__(self) -> Any:
            return print, ("executed",)

    torch.save({"format": checkpoint.FORMAT, "network": Hostile()}, tmp_path / "evil.pt")
    Image.new("RGB", (1, 1)).save(tmp_path / "picture.png")
    for path in ("evil.pt", "absent.pt", "picture.png"):
        with pytest.raises(CouceError):
            checkpoint.load(tmp_path / path)
