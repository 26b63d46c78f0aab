"""`couce audit`: from what was typed to a section of the report."""

from collections.abc import Sequence
from pathlib import Path

from couce.errors import CouceError
from couce.preprocess import Preprocess
from couce.train.analysis.audit import Advance, audit
from couce.train.analysis.audit_report import audit_section, summarise
from couce.train.analysis.masks import demo_plan, open_masks
from couce.train.analysis.models import is_model, open_models
from couce.train.analysis.section import Section
from couce.train.data import open_dataset
from couce.train.data.base import DataSet, Split
from couce.train.data.demo import example_of


def run_audit(
    arguments: Sequence[str],
    root: Path | None,
    train_classes: int | None,
    confounding: float,
    preprocess: Preprocess | None,
    masks: Path | None,
    colour: bool,
    *,
    limit: int,
    gallery: int,
    size: int,
    seed: int,
    advance: Advance,
) -> Section:
    paths = [Path(text) for text in arguments if is_model(text)]
    others = [text for text in arguments if not is_model(text)]
    if not paths:
        raise CouceError(
            f"{' '.join(arguments)} names no model: a .pt or .onnx file, or the folder of a run"
        )
    if len(others) > 1:
        raise CouceError(f"there is one data set in an audit, not {', '.join(others)}")
    models = open_models(paths, preprocess)
    data = open_dataset(others[0] if others else "demo", root, train_classes, confounding)
    found = audit(
        models,
        data.test,
        open_masks(data, masks),
        background_names(data, data.test),
        limit,
        gallery,
        size,
        seed,
        advance,
    )
    summaries = summarise(found, colour, background_names(data, found.gallery), seed)
    return audit_section(found, summaries, data.name, colour)


def background_names(data: DataSet, split: Split) -> list[str] | None:
    """Of each picture, where they are known: in the demo set."""
    plan = demo_plan(data)
    return None if plan is None else [example_of(path, plan).background for path in split.paths]
