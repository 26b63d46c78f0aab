"""`couce audit`, and the same call from Python."""

import os
from collections.abc import Sequence
from pathlib import Path

from couce.audit.masks import demo_plan, open_masks
from couce.audit.measure import ShowProgress, measure
from couce.audit.models import open_models
from couce.audit.report import audit_section, summarise
from couce.data import open_dataset
from couce.data.base import DataSet, Split
from couce.data.demo import example_of
from couce.preprocess import Preprocess
from couce.report.section import Section


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
    count_colour: bool = False,
    seed: int = 0,
    preprocess: Preprocess | None = None,
    progress: ShowProgress = lambda *_: None,
) -> Section:
    """Searches with changed pictures of a test half in the gallery of the unchanged ones.

    ``audit(["model.onnx"], "photos/").write(Path("analysis"))`` writes the report as a page.

    Args:
        models: checkpoints (.pt), ONNX models or folders of runs. All see the same pictures.
        dataset: the data set whose test half is searched, as for ``couce.evaluate``.
        data: where the data set is, if it is not in ``data/NAME``.
        train_classes: how many classes of a folder without halves are the training half.
        confounding: how far the backgrounds of the demo set tell the class.
        limit: how many queries at most.
        gallery: about how many images to search in; whole classes are taken.
        size: pixels of the shorter side at which pictures are changed.
        masks: a folder of object masks, ``CLASS/NAME.png``; by default those of the data set, and
            where it has none a rough estimate.
        count_colour: whether changes of colour count as nuisances too.
        seed: of all random numbers.
        preprocess: for ONNX models that do not describe it themselves.
        progress: is called with what is done, how much of it, and how much there is.
    """
    opened = open_models([Path(model) for model in models], preprocess)
    found = open_dataset(dataset, data, train_classes, confounding)
    result = measure(
        opened,
        found.test,
        open_masks(found, None if masks is None else Path(masks)),
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
