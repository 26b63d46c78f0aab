"""`couce audit`, and the same call from Python."""

import os
from collections.abc import Sequence
from pathlib import Path

from couce.audit.bias import bias_section, measure_bias
from couce.audit.measure import ShowProgress, measure
from couce.audit.models import open_models
from couce.audit.report import audit_section, summarise
from couce.data import open_dataset
from couce.data.base import DataSet, Split
from couce.data.demo import example_of
from couce.errors import CouceError, unknown_name
from couce.masks import demo_plan, open_masks
from couce.preprocess import Preprocess
from couce.report.section import Section

PROTOCOLS = ("queries", "background-bias")


def audit(
    models: Sequence[str | os.PathLike[str]],
    dataset: str = "demo",
    *,
    data: str | Path | None = None,
    train_classes: int | None = None,
    confounding: float = 0.9,
    limit: int = 500,
    gallery: int = 6000,
    size: int = 256,
    masks: str | Path | None = None,
    mask_model: str | Path | None = None,
    protocol: str = "queries",
    backgrounds: str | Path | None = None,
    drawings: int = 5,
    count_colour: bool = False,
    seed: int = 0,
    preprocess: Preprocess | None = None,
    progress: ShowProgress = lambda *_: None,
) -> Section:
    """Changes the images of a test half and searches them among the unchanged images.

    ``audit(["model.onnx"], "photos/").write(Path("analysis"))`` writes the report as a page.

    Args:
        models: checkpoints (.pt), ONNX models or folders of runs. All see the same images.
        dataset: the data set whose test half is searched, as for ``couce.evaluate``.
        data: where the data set is, if it is not in ``data/NAME``.
        train_classes: how many classes form the training half of a folder without halves.
        confounding: the share of the demo set's training images that show the background and the
            light of their class.
        limit: the largest number of queries.
        gallery: about how many images to search in. Whole classes are taken.
        size: how many pixels the shorter side of an image has when it is changed. Smaller images
            keep their size.
        masks: a folder of object masks, ``CLASS/NAME.png``, or ``rembg``. Without one, the masks of
            the data set are used; if it has none, they are roughly estimated.
        mask_model: a salient-object network as an ONNX file, which makes the masks.
        protocol: ``queries`` changes each query in many ways and searches it among unchanged
            images. ``background-bias`` puts all images of the test half before other backgrounds
            (Kobs and Hotho, 2022); it has no ``limit`` and no ``gallery``.
        backgrounds: for ``background-bias``, a folder of images of backgrounds. The default is the
            backgrounds of other classes.
        drawings: for ``background-bias``, how often backgrounds are drawn.
        count_colour: whether changes of colour count as nuisances too.
        seed: the seed of all random numbers.
        preprocess: how images are prepared for ONNX models that do not describe it themselves.
        progress: a function that is called with the name of the current step, how many images are
            done, and how many there are.
    """
    if protocol not in PROTOCOLS:
        raise unknown_name("protocol", protocol, PROTOCOLS)
    if backgrounds is not None and protocol != "background-bias":
        raise CouceError("--backgrounds is for --protocol background-bias; leave it out")
    opened = open_models([Path(model) for model in models], preprocess)
    found = open_dataset(dataset, data, train_classes, confounding)
    shapes = open_masks(found, masks, mask_model)
    if protocol == "background-bias":
        folder = None if backgrounds is None else Path(backgrounds)
        return bias_section(
            measure_bias(opened, found.test, shapes, folder, drawings, size, seed, progress)
        )
    result = measure(
        opened,
        found.test,
        shapes,
        background_names(found, found.test),
        limit,
        gallery,
        size,
        seed,
        progress,
    )
    summaries = summarise(result, count_colour, background_names(found, result.gallery), seed)
    return audit_section(result, summaries, found.name, count_colour)


def background_names(data: DataSet, split: Split) -> list[str] | None:
    """The name of each image's background in the demo set; None for other sets."""
    plan = demo_plan(data)
    return None if plan is None else [example_of(path, plan).background for path in split.paths]
