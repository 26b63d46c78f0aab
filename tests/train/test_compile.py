"""The setting `compile`: it gives the numbers of plain training, and does not compile anew."""

from collections.abc import Callable, Sequence
from functools import partialmethod
from pathlib import Path
from typing import Any

import pytest
import torch

from couce.data import open_dataset
from couce.data.images import ImageStore
from couce.train.loop import Epoch, Training, Views, network_of
from couce.train.processes import Processes
from couce.train.settings import resolve

SMALL = {"dim": 16, "batch_classes": 6, "batch_images": 2, "epochs": 4, "warmup": 1}
Graph = Callable[..., Any]


def losses(pictures: Path, folder: Path, after: Callable[[], None], **more: Any) -> list[float]:
    """The base loss of each epoch. ``after`` is called at the end of each epoch."""
    settings = resolve(
        "demo", assignments=SMALL | {"odba.capacity": 64, "evaluate_every": 4}, **more
    )
    data = open_dataset("demo", pictures)
    prepared = network_of(settings)[1]
    train, test = (ImageStore(half, prepared) for half in (data.train, data.test))
    folder.mkdir()
    found = []
    for each in Training(settings, train, test, folder, Processes()):
        if isinstance(each, Epoch):
            found.append(each.parts["dml"])
            after()
    return found


def test_compiles_only_while_the_module_changes(
    pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = 0
    counts = []

    def backend(graph: torch.fx.GraphModule, _inputs: Sequence[torch.Tensor]) -> Graph:
        nonlocal compiled
        compiled += 1
        return graph.forward

    # Only the backend is ours: torch traces, guards and decides when to compile again.
    monkeypatch.setattr(Views, "compile", partialmethod(Views.compile, backend=backend))
    options = {"compile": True}
    ours = losses(pictures, tmp_path / "a", lambda: counts.append(compiled), options=options)
    assert counts[0] > 0
    # The second epoch ends the warm-up: more layers learn, so torch compiles a second time.
    assert counts[1] == counts[2] == counts[3]
    plain = losses(pictures, tmp_path / "b", lambda: None)
    assert ours == pytest.approx(plain, rel=1e-5)


@pytest.mark.slow
def test_real_compilation_gives_the_same_losses(pictures: Path, tmp_path: Path) -> None:
    options = {"compile": True, "epochs": 2}
    ours = losses(pictures, tmp_path / "a", lambda: None, options=options)
    plain = losses(pictures, tmp_path / "b", lambda: None, options={"epochs": 2})
    # Small differences of rounding grow with each step.
    assert ours == pytest.approx(plain, rel=0.02)
    assert ours[0] == pytest.approx(plain[0], rel=1e-5)
