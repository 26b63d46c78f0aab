"""Small real models for everything that needs one."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from couce.model_info import ModelInfo
from couce.preprocess import Preprocess

CROP, DIM = 16, 8
MakeModel = Callable[..., Path]

# Made once for many tests, and too dear to be made by every worker.
SHARED = ("milvus_server", "browser", "runs")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of several workers (``scripts/test`` has one for each core), one gets all that share such a thing."""
    for item in items:
        for name in SHARED:
            if name in getattr(item, "fixturenames", ()):
                item.add_marker(pytest.mark.xdist_group(name))


@pytest.fixture
def make_model(tmp_path: Path) -> MakeModel:
    """Writes an ONNX model that multiplies pixels by a random matrix; ``describe`` says if it is ours.

    ``batch``, ``kind`` and ``info`` change its input's first dimension and type and its description.
    """
    return lambda name="model.onnx", **options: _write_model(tmp_path / name, **options)


@pytest.fixture(scope="session")
def small_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, for whoever starts something that several tests share."""
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
