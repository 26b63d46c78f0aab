"""Fixtures for all tests: small models, runs, and the command line."""

import logging
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from couce.models.info import ModelInfo
from couce.preprocess import Preprocess

CROP, DIM = 16, 8
MakeModel = Callable[..., Path]

# Fixtures of many tests that take too long for every worker to make them.
SHARED = ("milvus_server", "browser", "runs")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sends all tests that share one of these fixtures to the same worker."""
    for item in items:
        for name in SHARED:
            if name in getattr(item, "fixturenames", ()):
                item.add_marker(pytest.mark.xdist_group(name))


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """The last line of a run names what was skipped, and why."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    skipped = reporter.stats.get("skipped", []) if reporter else []
    reasons = Counter(report.longrepr[2].removeprefix("Skipped: ") for report in skipped)
    if reasons:
        listed = "; ".join(f"{count} x {reason}" for reason, count in reasons.most_common())
        print(f"ATTENTION, SKIPPED: {listed}")


@pytest.fixture
def make_model(tmp_path: Path) -> MakeModel:
    """A function that writes an ONNX model, which multiplies the pixels by a random matrix.

    With ``describe``, the model has the description of a model of CouCE. ``batch`` and ``kind`` are
    the batch size and the type of its input. ``info`` changes fields of the description.
    """
    return lambda name="model.onnx", **options: _write_model(tmp_path / name, **options)


@pytest.fixture(scope="session")
def small_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model as of ``make_model``, for fixtures that live for the whole session."""
    return _write_model(tmp_path_factory.mktemp("small") / "model.onnx")


def _write_model(
    path: Path,
    describe: bool = True,
    batch: int | str = "batch",
    kind: int = TensorProto.UINT8,
    **info: Any,
) -> Path:
    rng = np.random.default_rng(0)
    matrix = rng.standard_normal((CROP * CROP * 3, DIM)).astype(np.float32)
    shape = [batch, CROP, CROP, 3] if kind == TensorProto.UINT8 else [batch, 3, CROP, CROP]
    graph = helper.make_graph(
        [
            helper.make_node("Cast", ["image"], ["floats"], to=TensorProto.FLOAT),
            helper.make_node("Flatten", ["floats"], ["flat"]),
            helper.make_node("MatMul", ["flat", "matrix"], ["embedding"]),
        ],
        "projection",
        [helper.make_tensor_value_info("image", kind, shape)],
        [helper.make_tensor_value_info("embedding", TensorProto.FLOAT, [batch, DIM])],
        [numpy_helper.from_array(matrix, "matrix")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    if describe:
        values = {
            "input": "uint8" if kind == TensorProto.UINT8 else "float",
            "precision": "fp32",
            "backbone": "projection",
            "dim": DIM,
            "preprocess": Preprocess(resize=CROP, crop=CROP).to_dict(),
            "weights": "0" * 64,
            "dataset": "none",
            "metrics": {},
            "licence": "none",
            "couce": "0",
        }
        described = ModelInfo.model_construct(**{"format": 1, **values, **info})
        helper.set_model_props(model, described.to_metadata())
    onnx.save(model, path)
    return path


# Settings of a very small training.
SMALL = {"dim": 16, "batch_classes": 8, "batch_images": 3, "odba.capacity": 64}


@pytest.fixture(scope="session")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a small demo set."""
    from couce.data.demo import write_demo

    return write_demo(tmp_path_factory.mktemp("data") / "demo", confounding=0.5, per_class=4)


@pytest.fixture(scope="session")
def runs(pictures: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The folders of two short runs, with the methods ``base`` and ``couce``."""
    from couce.train.run import Data, run_training
    from couce.train.settings import resolve

    folder = tmp_path_factory.mktemp("runs")
    for method in ("base", "couce"):
        settings = resolve("demo", method=method, assignments=SMALL, options={"epochs": 1})
        run_training(Data("demo", pictures), settings, folder / method)
    return {method: folder / method for method in ("base", "couce")}


@pytest.fixture
def call(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """Runs the command line in this process. Returns exit code, standard output and error."""

    def run(*arguments: str | Path) -> tuple[int, str, str]:
        from couce.cli import main

        monkeypatch.setattr(sys, "argv", ["couce", *map(str, arguments)])
        code: object = 0
        try:
            main()
        except SystemExit as stopped:
            code = stopped.code
        printed = capsys.readouterr()
        return int(str(code or 0)), printed.out, printed.err

    return run


@pytest.fixture
def messages() -> Iterator[list[str]]:
    """The log messages of this package, line by line."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    log = logging.getLogger("couce")
    before = log.level
    log.setLevel(logging.INFO)
    log.addHandler(handler)
    yield lines
    log.removeHandler(handler)
    log.setLevel(before)
