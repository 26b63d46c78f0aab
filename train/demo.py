"""The first part of `couce demo`: draws images, and trains with and without CouCE."""

import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from PIL import Image

from couce.data.demo import write_demo
from couce.data.drawing import PIXELS
from couce.preprocess import open_image
from couce.train.run import Data, run_training
from couce.train.settings import resolve

log = logging.getLogger(__name__)

METHODS = {"base": "base loss", "couce": "CouCE"}


class Demo(NamedTuple):
    pictures: Path
    metrics: Mapping[str, Mapping[str, float]]  # of the test half, by the name of the method
    run: Path  # the folder of the run with CouCE


def train_demo(folder: Path, epochs: int | None, seed: int) -> Demo:
    """Draws the images, trains with and without CouCE, and measures both on the test half."""
    start = time.perf_counter()
    folder.mkdir(parents=True, exist_ok=True)
    pictures = write_demo(folder / "pictures")
    _contact_sheet(pictures, folder / "pictures.png")
    seconds = time.perf_counter() - start
    log.info("Drew images of 64 classes in %.0f s; see %s/pictures.png", seconds, folder)
    results, run = {}, folder
    for method, name in METHODS.items():
        log.info("Training with %s", name)
        settings = resolve("demo", method=method, options={"epochs": epochs, "seed": seed})
        run = folder / f"{method}-{time.strftime('%Y%m%d-%H%M%S')}"
        results[name] = run_training(Data("demo", pictures), settings, run).metrics["last"]
    return Demo(pictures, results, run)


def _contact_sheet(pictures: Path, target: Path) -> None:
    """Draws a row for every second class: training images on the left, test images on the right."""
    gap = PIXELS + 2
    sheet = Image.new("RGB", (10 * gap, 16 * gap), "white")
    for side, half in enumerate(("train", "test")):
        for row, folder in enumerate(sorted((pictures / half).iterdir())[::2]):
            for column, path in enumerate(sorted(folder.iterdir())[:5]):
                sheet.paste(open_image(path), ((5 * side + column) * gap, row * gap))
    sheet.save(target)
