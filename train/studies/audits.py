"""Audits of the runs of a study: how much each method depends on backgrounds, over its seeds."""

import json
import logging
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path

from couce.audit.bias import measure_bias
from couce.audit.command import background_names
from couce.audit.measure import CLEAN, NO_OBJECT, OTHER, OWN, ROWS, ShowProgress, measure
from couce.audit.models import open_models
from couce.files import checksum, replace_file
from couce.masks import open_masks
from couce.report.section import plain
from couce.train.figures.runs import open_run
from couce.train.run import judged_split

log = logging.getLogger(__name__)

# What an audit of a run gives, as fractions. docs/audit.md explains them.
AUDITED = (
    "R@1 as it is",
    "kept before another background",
    "own minus other background",
    "background alone",
    "MAP@R, replaced",
    "MAP@R lost",
)


def audit_runs(
    folders: Iterable[Path],
    masks: str | None = None,
    mask_model: Path | None = None,
    limit: int = 500,
    drawings: int = 5,
    progress: ShowProgress = lambda *_: None,
) -> dict[Path, Mapping[str, float]]:
    """The audit of each run, on the images that its metrics are of. It is kept in ``audit.json``.

    Both protocols of `couce audit` are used: changed queries, and all images before other
    backgrounds.
    """
    found: dict[Path, Mapping[str, float]] = {}
    todo = list(folders)
    for number, folder in enumerate(todo, 1):
        run = open_run(folder)
        half = judged_split(run.data, run.settings)
        shapes = open_masks(run.data, masks, mask_model)
        what = {
            "checkpoint": checksum(folder / "last.pt"),
            "masks": f"{shapes.kind} {shapes.source}",
            "limit": limit,
            "drawings": drawings,
        }
        kept = _kept(folder / "audit.json", what)
        if kept is None:
            (model,) = open_models([folder], None)
            names = background_names(run.data, half)
            each = measure([model], half, shapes, names, limit, progress=progress).found[model.name]
            rows = dict(zip(ROWS, each.hit.mean(axis=1).tolist(), strict=True))
            bias = measure_bias([model], half, shapes, drawings=drawings, progress=progress)
            replaced = bias.found[model.name]
            values = (
                rows[CLEAN],
                rows[OTHER] / rows[CLEAN] if rows[CLEAN] else float("nan"),
                rows[OWN] - rows[OTHER],
                rows[NO_OBJECT],
                replaced.mean("MAP@R"),
                replaced.lost("MAP@R"),
            )
            kept = dict(zip(AUDITED, values, strict=True))
            text = json.dumps(plain({**what, "audit": kept}), indent=2) + "\n"
            replace_file(folder / "audit.json", partial(Path.write_text, data=text))
        found[folder] = kept
        log.info("%d/%d audited  %s", number, len(todo), folder.name)
    return found


def _kept(path: Path, what: Mapping[str, object]) -> Mapping[str, float] | None:
    """The audit in a file, if it was made in the same way."""
    try:
        content = json.loads(path.read_text())
        same = all(content[name] == value for name, value in what.items())
        values = {name: content["audit"][name] for name in AUDITED}
        # What could not be computed is NaN, which JSON does not have.
        return {n: float("nan") if v is None else v for n, v in values.items()} if same else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
