"""Compares the speed of the training loop with that of the bare training step.

    python benchmarks/train_loop.py [--data FOLDER] [--steps 12] [--rounds 5]

The bare step is forward, loss, backward and Adam on one batch that is already in memory. The loop
is that of `couce train`, which also samples, decodes JPEGs, crops, checks and records. Series of
steps of both take turns in one process. There are three cases:

- the `cpu` preset with all images already decoded and kept, as in every epoch after the first;
- the `cpu` preset that decodes every image each time;
- resnet50 at 224 pixels that decodes every image each time.

Decoding and the step use the same cores, so the bound is 1 / (1 + decoding alone / bare step).
Without --data, JPEGs of the size of photos are made from the demo set.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from couce.data import open_dataset
from couce.data.demo import write_demo
from couce.data.images import ImageStore
from couce.network import Normalise
from couce.preprocess import open_image
from couce.train.batches import balanced_epoch, training_batches
from couce.train.loop import Step, Training, network_of
from couce.train.processes import Processes
from couce.train.settings import TrainSettings, resolve

WORKERS = 2
# The training never ends and is never evaluated. At the end of an epoch, it only saves.
ENDLESS = {"weights": "none", "warmup": 0, "epochs": 10**6, "evaluate_every": 10**6}
DECODING = {"cache": "none", "workers": WORKERS}
SMALL_BATCH = {"batch_classes": 16, "batch_images": 2}
CASES: dict[str, TrainSettings] = {
    "cpu preset, kept": resolve("cub", "cpu", options=ENDLESS),
    "cpu preset, decoding": resolve("cub", "cpu", options=ENDLESS | DECODING),
    "resnet50, decoding": resolve("cub", options=ENDLESS | DECODING | SMALL_BATCH),
}


def photos(folder: Path) -> Path:
    """Writes the demo set as JPEGs of 500 x 375 pixels with quality 90, like those of CUB."""
    drawn = write_demo(folder / "drawn")
    for path in drawn.rglob("*.png"):
        target = folder / "photos" / path.relative_to(drawn).with_suffix(".jpg")
        target.parent.mkdir(parents=True, exist_ok=True)
        open_image(path).resize((500, 375), Image.Resampling.BICUBIC).save(target, quality=90)
    return folder / "photos"


def compare(name: str, settings: TrainSettings, data: Path, steps: int, rounds: int) -> None:
    found = open_dataset(str(data))
    _, preprocess = network_of(settings)
    with tempfile.TemporaryDirectory() as folder:
        store = ImageStore(found.train, preprocess, settings.cache, Path(folder), settings.workers)
        run = Training(settings, store, store, Path(folder), Processes())
        if settings.cache == "ram":
            with ThreadPoolExecutor(WORKERS) as threads:
                list(threads.map(store.load, range(len(found.train.paths))))
        bare = bare_step(run)
        loop = (event for event in run if isinstance(event, Step))
        bare(), next(loop)
        seconds: dict[str, list[float]] = {"bare": [], "loop": [], "decoding": []}
        for turn in range(rounds):
            seconds["loop"].append(timed(lambda: [next(loop) for _ in range(steps)]) / steps)
            seconds["bare"].append(timed(lambda: [bare() for _ in range(steps)]) / steps)
            seconds["decoding"].append(decoding(run, steps, turn))
    batch = settings.batch_classes * settings.batch_images
    middle = {kind: statistics.median(values) for kind, values in seconds.items()}
    bound = 1 / (1 + middle["decoding"] / middle["bare"])
    ratio = middle["bare"] / middle["loop"]
    print(
        f"{name:22}{batch / middle['bare']:9.1f}{batch / middle['loop']:9.1f}"
        f"{batch / middle['decoding']:10.0f}{ratio:9.3f}{bound:8.3f}{ratio / bound:14.3f}"
    )


def bare_step(run: Training) -> Callable[[], None]:
    """Returns a function that does one training step on one batch and nothing else."""
    plan = plan_of(run, 0)
    batch = next(training_batches(run.train, run.train.split.labels, plan[:1], 0, 0))
    images = Normalise(run.train.preprocess)(torch.from_numpy(batch.pixels))
    labels = torch.from_numpy(batch.labels)
    views = run._prepare(0)

    def step() -> None:
        m, m_tilde = views(images, run._factors(len(plan[0]), 0, 0, slice(None)))
        total, _ = run.objective(m, labels, m_tilde)
        run.optimiser.zero_grad(set_to_none=True)
        total.backward()
        run.optimiser.step()

    return step


def decoding(run: Training, steps: int, turn: int) -> float:
    """The seconds for each batch of the loader alone."""
    plan = [batch for epoch in range(steps) for batch in plan_of(run, epoch)][:steps]
    batches = training_batches(run.train, run.train.split.labels, plan, 1, turn)
    return timed(lambda: list(batches)) / len(plan)


def plan_of(run: Training, epoch: int) -> list[NDArray[np.intp]]:
    settings, labels = run.settings, run.train.split.labels
    return balanced_epoch(labels, settings.batch_classes, settings.batch_images, 1, epoch)


def timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="a folder of class folders with real photos")
    parser.add_argument(
        "--steps", type=int, default=12, help="steps in a series; resnet50 does a quarter of them"
    )
    parser.add_argument("--rounds", type=int, default=5, help="series of each kind")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        data = arguments.data or photos(Path(folder))
        print(f"{'images/s':22}{'bare':>9}{'loop':>9}{'decoding':>10}{'ratio':>9}{'bound':>8}"
              f"{'ratio/bound':>14}")  # fmt: skip
        for name, settings in CASES.items():
            steps = arguments.steps if settings.backbone != "resnet50" else arguments.steps // 4
            compare(name, settings, data, steps, arguments.rounds)


if __name__ == "__main__":
    main()
