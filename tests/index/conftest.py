"""A tiny model, a few images and a reference search, for all tests of the index."""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

from couce.cli import main
from couce.index import NewItem
from couce.models.info import ModelInfo
from couce.preprocess import Preprocess

DIM = 16
CROP = 16


def write_model(path: Path, seed: int = 0) -> Path:
    """Writes a model that projects pixels at random, with a description as CouCE's own models."""
    rng = np.random.default_rng(seed)
    weights = rng.standard_normal((CROP * CROP * 3, DIM)).astype(np.float32)
    nodes = [
        helper.make_node("Cast", ["image"], ["pixels"], to=TensorProto.FLOAT),
        helper.make_node("Reshape", ["pixels", "shape"], ["flat"]),
        helper.make_node("Sub", ["flat", "middle"], ["centred"]),
        helper.make_node("MatMul", ["centred", "weights"], ["embedding"]),
    ]
    graph = helper.make_graph(
        nodes,
        "projection",
        [helper.make_tensor_value_info("image", TensorProto.UINT8, ["n", CROP, CROP, 3])],
        [helper.make_tensor_value_info("embedding", TensorProto.FLOAT, ["n", DIM])],
        [
            numpy_helper.from_array(weights, "weights"),
            numpy_helper.from_array(np.array([-1, CROP * CROP * 3]), "shape"),
            numpy_helper.from_array(np.array(127.5, np.float32), "middle"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    info = ModelInfo(
        input="uint8",
        precision="fp32",
        backbone="none",
        dim=DIM,
        preprocess=Preprocess(resize=CROP, crop=CROP).to_dict(),
        weights="0" * 64,
        dataset="none",
        metrics={},
        licence="none",
        couce="0",
    )
    helper.set_model_props(model, info.to_metadata())
    onnx.save(model, path)
    return path


def write_picture(path: Path, seed: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (20, 24, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path, "PNG")
    return path


def unit(count: int, dim: int = DIM, seed: int = 0) -> NDArray[np.float32]:
    rows = np.random.default_rng(seed).standard_normal((count, dim)).astype(np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def numbered(rows: NDArray[np.float32], first: int = 0) -> list[NewItem]:
    """Items i00000, i00001, ... whose labels and metadata follow from their numbers."""
    return [
        NewItem(row, id=f"i{n:05}", label=f"l{n % 7}", metadata={"n": n, "even": n % 2 == 0})
        for n, row in enumerate(rows, first)
    ]


def nearest(
    rows: NDArray[np.float32], query: NDArray[np.float32], k: int, among: Sequence[int]
) -> list[str]:
    """The ids of the ``k`` nearest rows: the reference, which compares one row at a time."""
    scores = [(float(np.dot(rows[n], query)), n) for n in among]
    return [f"i{n:05}" for _, n in sorted(scores, reverse=True)[:k]]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(tmp_path / "model.onnx")


@pytest.fixture
def gallery(tmp_path: Path) -> Path:
    """Three classes of four images."""
    for label in range(3):
        for number in range(4):
            write_picture(
                tmp_path / "gallery" / f"class-{label}" / f"{number}.png", 10 * label + number
            )
    return tmp_path / "gallery"


class Couce(Protocol):
    def __call__(self, *arguments: str, code: int = 0) -> str: ...


@pytest.fixture
def couce(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Couce:
    """Runs `couce index ...` in the test's folder, checks the exit code and returns the output."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments: str, code: int = 0) -> str:
        capfd.readouterr()
        monkeypatch.setattr(sys, "argv", ["couce", "index", *arguments])
        with pytest.raises(SystemExit) as stopped:
            main()
        output = "".join(capfd.readouterr())
        assert (stopped.value.code or 0) == code, output
        return output

    return run


@pytest.fixture(scope="session")
def milvus_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A real Milvus server on free ports of this machine, with users and passwords."""
    package = pytest.importorskip("milvus", reason="needs the package milvus from the extra dev")
    pytest.importorskip("pymilvus")
    config = package.MilvusServerConfig(data_dir=str(tmp_path_factory.mktemp("milvus")))
    for role in (
        "rootCoord",
        "proxy",
        "queryCoord",
        "queryNode",
        "indexNode",
        "dataCoord",
        "dataNode",
    ):
        config.set(f"{role}.ip", "127.0.0.1")
    config.set("common.security.authorizationEnabled", "true")
    config.set("proxy.timeTickInterval", "20")  # ms; a strongly consistent read waits so long
    server = package.MilvusServer(config)
    server.start()
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture
def milvus(milvus_server: Any) -> str:
    """The server's address, without the name of a collection."""
    return f"milvus+http://root:Milvus@127.0.0.1:{milvus_server.listen_port}"
