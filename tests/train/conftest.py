"""Two small trained runs on the demo set, shared by all that look at one."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from couce.train.data.demo import write_demo
from couce.train.session import Data, train
from couce.train.settings import resolve

SMALL = ["dim=16", "batch_classes=8", "batch_images=3", "odba.capacity=64"]


@pytest.fixture(scope="session")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_demo(tmp_path_factory.mktemp("data") / "demo", confounding=0.5, per_class=4)


@pytest.fixture(scope="session")
def runs(pictures: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders of runs, ``base`` and ``couce``."""
    folder = tmp_path_factory.mktemp("runs")
    for method in ("base", "couce"):
        settings = resolve("demo", method=method, assignments=SMALL, options={"epochs": 1})
        train(Data("demo", pictures), settings, folder / method)
    return {method: folder / method for method in ("base", "couce")}


Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """The command line in this process: exit code, what it said, what it complained of."""

    def run(*arguments: str | Path) -> tuple[int, str, str]:
        from couce.cli import main

        monkeypatch.setattr(sys, "argv", ["couce", *map(str, arguments)])
        code: object = 0
        try:
            main()
        except SystemExit as stopped:
            code = stopped.code
        said = capsys.readouterr()
        return int(str(code or 0)), said.out, said.err

    return run
