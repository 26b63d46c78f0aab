"""A training from its command to its result: data, run folder, loop, last measurement."""

import json
import platform
import sys
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch

from couce import __version__, checkpoint
from couce.durable import replace_file
from couce.errors import CouceError
from couce.train.data import check_counts, open_dataset
from couce.train.data.base import Split
from couce.train.evaluate import build_network, measure
from couce.train.images import ImageStore
from couce.train.loop import Run, Step
from couce.train.processes import Processes
from couce.train.report import Report
from couce.train.settings import TrainSettings


@dataclass(frozen=True)
class Data:
    """What to train on."""

    name: str
    root: Path | None = None
    train_classes: int | None = None
    confounding: float | None = None  # None: the demo set's own default
    allow_missing: bool = False

    @property
    def opening(self) -> dict[str, Any]:
        """The arguments of :func:`open_dataset`, in plain values."""
        return {
            "name": self.name,
            "root": None if self.root is None else str(self.root),
            "train_classes": self.train_classes,
            **({} if self.confounding is None else {"confounding": self.confounding}),
        }

    @classmethod
    def of_run(cls, folder: Path, given: "Data") -> "Data":
        """What the run in ``folder`` was begun with; ``given`` may only say where that is now."""
        path = folder / "environment.json"
        try:
            stored = json.loads(path.read_text())["data"]
            kept = cls(
                **stored | {"root": None if stored["root"] is None else Path(stored["root"])}
            )
        except (OSError, ValueError, TypeError, KeyError):
            raise CouceError(
                f"{folder} cannot be gone on with: {path} does not say its data"
            ) from None
        for name in ("name", "train_classes", "confounding"):
            said, own = getattr(given, name), getattr(kept, name)
            if said is not None and said != own:
                raise CouceError(
                    f"{folder} was begun with {name.replace('_', ' ')} {own}, not {said}"
                )
        return replace(
            kept,
            root=given.root or kept.root,
            allow_missing=given.allow_missing or kept.allow_missing,
        )


def train(
    data: Data, settings: TrainSettings, folder: Path, resume: bool = False
) -> dict[str, Any]:
    """Trains into ``folder`` and returns what was measured of the last and of the best epoch."""
    processes = Processes()
    try:
        return _train(data, settings, folder, resume, processes)
    except torch.cuda.OutOfMemoryError:
        raise CouceError(
            "the GPU's memory is full; lower batch_classes or batch_images, or resize and crop"
        ) from None
    except KeyboardInterrupt:
        raise CouceError(
            f"stopped; go on with `couce train {data.name} --resume {folder}`"
        ) from None
    finally:
        processes.close()


def _train(
    data: Data, settings: TrainSettings, folder: Path, resume: bool, processes: Processes
) -> dict[str, Any]:
    with processes.leader_first():  # which draws what the others then find
        found = open_dataset(**data.opening)
    if not data.allow_missing:
        check_counts(found)
    learning, held_out = _hold_out(found.train, settings)
    _, preprocess = build_network(settings.model_copy(update={"weights": "none"}))

    def store(split: Split) -> ImageStore:
        return ImageStore(
            split, preprocess, settings.cache, folder.parent / "cache", settings.workers
        )

    test = store(found.test)
    chooser = test if held_out is None else store(held_out)
    judge, judged = (test, "test half") if settings.test else (chooser, "held-out classes")
    run = Run(settings, store(learning), chooser, folder, processes, data.opening)
    if resume and (folder / "last.pt").exists():
        run.resume(checkpoint.load(folder / "last.pt"))
    if not processes.leads:
        for _ in run:
            pass
        return {}

    folder.mkdir(parents=True, exist_ok=True)
    _describe(folder, data, settings, run)
    choice = "test R@1, as the field does" if held_out is None else "R@1 of held-out classes"
    with Report(folder, settings.epochs) as report:
        report.say(
            f"{found.name}: {learning.counts} to learn from, {judge.split.counts} to test on;"
            f" the best epoch is chosen by {choice}; writing to {folder}"
        )
        for event in run:
            report.step(event) if isinstance(event, Step) else report.epoch(event)
    result: dict[str, Any] = {"choice": choice, "of": judged}
    for name in ("last", "best"):
        if name == "best" and run.best["epoch"] == run.epoch:  # the same weights
            result["best"] = result["last"]
            continue
        network, _, content = checkpoint.load_network(folder / f"{name}.pt")
        network.to(run.device).to(memory_format=torch.channels_last)
        metrics = measure(network, judge, run.device, ks=(1, 2, 4, 8))
        result[name] = {"epoch": content["epoch"], "metrics": metrics}
    text = json.dumps(result, indent=2) + "\n"
    replace_file(folder / "result.json", lambda part: part.write_text(text))
    return result


def _hold_out(train: Split, settings: TrainSettings) -> tuple[Split, Split | None]:
    """The classes to learn from, and those held out to choose the best epoch by, if any."""
    if not settings.validate_classes:
        return train, None
    classes = len(train.names)
    count = max(2, round(settings.validate_classes * classes))
    if classes - count < 2:
        raise CouceError(f"{classes} training classes are too few to hold {count} of them out")
    if settings.validate_from is None:
        chosen = np.random.default_rng((settings.seed, 3)).choice(classes, count, replace=False)
    else:
        chosen = settings.validate_from - 1 + np.arange(count)
        if chosen[-1] >= classes:
            raise CouceError(
                f"{count} classes from number {settings.validate_from} on cannot be held out: there are"
                f" {classes}; set validate_from to {classes - count + 1} at most"
            )
    held = np.isin(train.labels, chosen)
    return train.select(~held), train.select(held)


def _describe(folder: Path, data: Data, settings: TrainSettings, run: Run) -> None:
    """The settings as used, the data and the environment, beside the checkpoints."""
    (folder / "config.toml").write_text(settings.to_toml())
    environment = {
        "command": sys.argv,
        "data": vars(data) | {"root": None if data.root is None else str(data.root)},
        "images": {"train": len(run.train.split.paths), "chooser": len(run.chooser.split.paths)},
        "device": str(run.device),
        "processes": run.processes.count,
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "couce": __version__,
        "packages": {n: metadata.version(n) for n in ("torch", "torchvision", "numpy", "pillow")},
    }
    (folder / "environment.json").write_text(json.dumps(environment, indent=2) + "\n")
