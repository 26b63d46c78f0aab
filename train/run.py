"""A training run: its data, its folder, the loop and the final evaluation."""

import json
import platform
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from importlib import metadata
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch

from couce import __version__, checkpoint, plugins
from couce.data import check_counts, open_dataset
from couce.data.base import DataSet, Split
from couce.data.images import ImageStore
from couce.errors import CouceError
from couce.evaluate import KS, evaluate_network
from couce.files import replace_file
from couce.train.loop import Step, Training, network_of
from couce.train.processes import Processes
from couce.train.progress import TrainingProgress
from couce.train.settings import TrainSettings, resolve


@dataclass(frozen=True)
class Run:
    """A finished training. Where a path is expected, a run stands for its best checkpoint."""

    folder: Path
    # For the epochs "last" and "best": R@1, 2, 4, 8, RP, MAP@R and NMI. With torchrun, only the
    # leading process has them; in the others this is empty.
    metrics: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    @property
    def best(self) -> Path:
        return self.folder / "best.pt"

    @property
    def last(self) -> Path:
        return self.folder / "last.pt"

    def __fspath__(self) -> str:
        return str(self.best)


@dataclass(frozen=True)
class Data:
    """The data set to train on."""

    name: str
    root: Path | None = None
    train_classes: int | None = None
    confounding: float | None = None  # None: the default of the demo set
    allow_missing: bool = False

    @property
    def opening(self) -> dict[str, Any]:
        """The arguments of :func:`open_dataset`, as values that a checkpoint can hold."""
        return {
            "name": self.name,
            "root": None if self.root is None else str(self.root),
            "train_classes": self.train_classes,
            **({} if self.confounding is None else {"confounding": self.confounding}),
        }

    @classmethod
    def of_run(cls, folder: Path, given: "Data") -> "Data":
        """The data of the run in ``folder``.

        ``given`` may only change where it is, and whether images may be missing.
        """
        path = folder / "environment.json"
        try:
            content = json.loads(path.read_text())
            stored = content["data"]
            kept = cls(
                **stored | {"root": None if stored["root"] is None else Path(stored["root"])}
            )
        except (OSError, ValueError, TypeError, KeyError):
            raise CouceError(
                f"the run in {folder} cannot be resumed: {path} does not name its data set"
            ) from None
        plugins.check_plugins(content.get("plugins", {}), f"the run in {folder}")
        for name in ("name", "train_classes", "confounding"):
            wanted, own = getattr(given, name), getattr(kept, name)
            if wanted is not None and wanted != own:
                label = "data set" if name == "name" else name.replace("_", " ")
                raise CouceError(
                    f"the run in {folder} was started with {label} {own}, not {wanted};"
                    " a run continues with its own data"
                )
        return replace(
            kept,
            root=given.root or kept.root,
            allow_missing=given.allow_missing or kept.allow_missing,
        )


def train(
    dataset: str = "demo",
    *,
    method: str = "couce",
    preset: str = "paper",
    config: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
    loss: str | None = None,
    backbone: str | None = None,
    weights: str | None = None,
    epochs: int | None = None,
    seed: int | None = None,
    device: str | None = None,
    cache: str | None = None,
    validate_classes: float | None = None,
    data: str | Path | None = None,
    train_classes: int | None = None,
    confounding: float | None = None,
    allow_missing: bool = False,
    plugin: Iterable[str | Path] = (),
    out: str | Path | None = None,
    resume: str | Path | None = None,
) -> Run:
    """Trains an embedding network, as `couce train` does. Arguments have the names of its options.

    ``train("cub", method="couce-plus", epochs=20).metrics["best"]["R@1"]`` is the R@1 of the best
    epoch.

    Args:
        dataset: cub, cars, sop, demo, a name from a plugin, a folder of class folders, or a CSV
            list.
        method: base, odba, msrci, odba+msrci, couce, couce-plus or bgaugment.
        preset: paper, or cpu, which has smaller images and a smaller backbone.
        config: a TOML file of settings.
        settings: single settings by their dotted names, such as ``{"odba.capacity": 4096}``.
        loss: the base loss; the default is proxy-an. The arguments from here to
            ``validate_classes`` are settings as well, and override ``settings`` and ``config``.
        backbone: the backbone; the default is that of the preset.
        weights: the starting weights: pretrained, none (random), or a file.
        epochs: the number of epochs.
        seed: the seed of all random numbers.
        device: auto, cpu or cuda.
        cache: where decoded images are kept: none, ram or disk.
        validate_classes: the share of training classes held out to choose the best epoch.
        data: the folder of the data set, if it is not ``data/NAME``.
        train_classes: how many classes of a folder without halves are the training half.
        confounding: how strongly the backgrounds of the demo set depend on the class; the default
            is 0.9.
        allow_missing: train even if images of a known data set are missing.
        plugin: Python files that add losses, backbones or data sets.
        out: the folder of the run; the default is ``runs/NAME-1``, or the next free number.
        resume: the folder of a run to continue. Its own settings are used.
    """
    plugins.load_plugins(plugin)
    options = {
        "loss": loss,
        "backbone": backbone,
        "weights": weights,
        "epochs": epochs,
        "seed": seed,
        "device": device,
        "cache": cache,
        "validate_classes": validate_classes,
    }
    chosen = Data(dataset, _path(data), train_classes, confounding, allow_missing)
    if resume is None:
        resolved = resolve(dataset, preset, method, _path(config), settings or {}, options)
        folder = _path(out) or _new_folder(Path("runs"), Path(dataset).stem)
        if (folder / "last.pt").exists():
            raise CouceError(
                f"{folder} already holds a run; continue it with --resume {folder},"
                " or name another folder with --out"
            )
    else:
        folder = Path(resume)
        resolved = _resumed(folder, config, settings, options)
        chosen = Data.of_run(folder, chosen)
    return run_training(chosen, resolved, folder, resume=resume is not None)


def run_training(data: Data, settings: TrainSettings, folder: Path, resume: bool = False) -> Run:
    """Trains, evaluates the last and the best epoch, and writes all files to ``folder``."""
    processes = Processes()
    try:
        return Run(folder, _train(data, settings, folder, resume, processes))
    except torch.cuda.OutOfMemoryError:
        raise CouceError(
            "the memory of the GPU is full; lower batch_classes or batch_images, or resize and crop"
        ) from None
    except KeyboardInterrupt:
        raise CouceError(
            "the training was stopped; continue it with"
            f" `couce train {data.name} --resume {folder}`"
        ) from None
    finally:
        processes.close()


def _train(
    data: Data, settings: TrainSettings, folder: Path, resume: bool, processes: Processes
) -> dict[str, dict[str, float]]:
    with processes.leader_first():  # the leading process draws the demo set
        found = open_dataset(**data.opening)
    if not data.allow_missing:
        check_counts(found)
    learning, held_out = _hold_out(found.train, settings)
    _, preprocess = network_of(settings.model_copy(update={"weights": "none"}))

    def store(split: Split) -> ImageStore:
        return ImageStore(
            split, preprocess, settings.cache, folder.parent / "cache", settings.workers
        )

    test = store(found.test)
    chooser = test if held_out is None else store(held_out)
    judge, judged = (test, "test half") if settings.test else (chooser, "held-out classes")
    training = Training(settings, store(learning), chooser, folder, processes, data.opening)
    if resume and (folder / "last.pt").exists():
        training.resume(checkpoint.load(folder / "last.pt"))
    if not processes.leads:
        for _ in training:
            pass
        return {}

    folder.mkdir(parents=True, exist_ok=True)
    _describe(folder, data, settings, training)
    choice = "test R@1, as the field does" if held_out is None else "R@1 of held-out classes"
    with TrainingProgress(folder, settings.epochs) as progress:
        progress.print(
            f"{found.name}: {learning.counts} to learn from, {judge.split.counts} to test on;"
            f" the best epoch is chosen by {choice}; writing to {folder}"
        )
        for event in training:
            progress.step(event) if isinstance(event, Step) else progress.epoch(event)
    result: dict[str, Any] = {"choice": choice, "of": judged}
    for name in ("last", "best"):
        if name == "best" and training.best["epoch"] == training.epoch:  # the same weights
            result["best"] = result["last"]
            continue
        network, _, content = checkpoint.load_network(folder / f"{name}.pt")
        metrics = evaluate_network(network.on(training.device), judge, training.device, KS)
        result[name] = {"epoch": content["epoch"], "metrics": metrics}
    text = json.dumps(result, indent=2) + "\n"
    replace_file(folder / "result.json", lambda part: part.write_text(text))
    return {name: result[name]["metrics"] for name in ("last", "best")}


def _hold_out(train: Split, settings: TrainSettings) -> tuple[Split, Split | None]:
    """The classes to learn from, and the held-out classes if there are any."""
    if not settings.validate_classes:
        return train, None
    classes = len(train.names)
    count = max(2, round(settings.validate_classes * classes))
    if classes - count < 2:
        raise CouceError(
            f"{classes} training classes are too few to hold {count} of them out;"
            " lower validate_classes"
        )
    if settings.validate_from is None:
        chosen = np.random.default_rng((settings.seed, 3)).choice(classes, count, replace=False)
    else:
        chosen = settings.validate_from - 1 + np.arange(count)
        if chosen[-1] >= classes:
            raise CouceError(
                f"{count} classes from number {settings.validate_from} on cannot be held out: there"
                f" are {classes}; set validate_from to {classes - count + 1} at most"
            )
    held = np.isin(train.labels, chosen)
    return train.select(~held), train.select(held)


def judged_split(data: DataSet, settings: TrainSettings) -> Split:
    """The images that the metrics of a run are of: the test half, or the held-out classes."""
    _, held_out = _hold_out(data.train, settings)
    return data.test if settings.test or held_out is None else held_out


def _describe(folder: Path, data: Data, settings: TrainSettings, training: Training) -> None:
    """Writes the settings, the data and the environment beside the checkpoints."""
    (folder / "config.toml").write_text(settings.to_toml())
    images = {
        "train": len(training.train.split.paths),
        "chooser": len(training.chooser.split.paths),
    }
    environment = {
        "command": sys.argv,
        "data": vars(data) | {"root": None if data.root is None else str(data.root)},
        "images": images,
        "plugins": plugins.loaded(),
        "device": str(training.device),
        "processes": training.processes.count,
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "couce": __version__,
        "packages": {n: metadata.version(n) for n in ("torch", "torchvision", "numpy", "pillow")},
    }
    (folder / "environment.json").write_text(json.dumps(environment, indent=2) + "\n")


def _path(text: str | Path | None) -> Path | None:
    return None if text is None else Path(text)


def _new_folder(parent: Path, name: str) -> Path:
    return next(p for n in count(1) if not (p := parent / f"{name}-{n}").exists())


def _resumed(
    folder: Path,
    config: str | Path | None,
    settings: Mapping[str, Any] | None,
    options: Mapping[str, Any],
) -> TrainSettings:
    """The settings of the run in ``folder``. Only the number of epochs may change."""
    path = folder / "config.toml"
    if not path.exists():
        raise CouceError(f"{folder} holds no run that can be resumed: {path} is missing")
    given = {key for key, value in options.items() if value is not None} - {"epochs"}
    if config is not None or settings or given:
        raise CouceError("a run continues with its own settings; with --resume give only --epochs")
    return resolve("", config=path, options={"epochs": options.get("epochs")})
