import sys
from types import SimpleNamespace

import onnx
import pytest
from onnx import TensorProto, helper

from couce import doctor
from couce.doctor import IDENTITY_MODEL, conflicts, examine


def test_the_embedded_model_is_what_onnx_writes() -> None:
    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy"]
    graph = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["y"])], "g", value[:1], value[1:]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    onnx.checker.check_model(model)
    assert onnx.load_from_string(IDENTITY_MODEL) == model


@pytest.mark.parametrize(
    ("packages", "words"),
    [
        (
            {"onnxruntime": "1.31.0", "onnxruntime-gpu": "1.31.0"},
            "onnxruntime and onnxruntime-gpu overwrite each other: uninstall",
        ),
        ({"faiss-cpu": "1.15", "faiss-gpu": "1.15"}, "faiss-cpu and faiss-gpu overwrite"),
        ({"faiss-cpu": "1.15", "faiss-gpu-cu12": "1.9"}, "faiss-cpu and faiss-gpu-cu12 overwrite"),
        (
            {"onnxruntime-gpu": "1.28.0", "faiss-gpu": "1.15"},
            "CUDA 13, faiss-gpu is built for CUDA 12",
        ),
        (
            {"onnxruntime-gpu": "1.26.0", "faiss-gpu-cuvs": "1.15"},
            "onnxruntime-gpu is built for CUDA 12",
        ),
    ],
)
def test_conflicting_packages(packages: dict[str, str], words: str) -> None:
    (problem,) = conflicts(packages)
    assert words in problem


@pytest.mark.parametrize(
    "packages",
    [
        {},
        {"onnxruntime": "1.31.0", "faiss-cpu": "1.15.1", "onnxruntime-extensions": "0.14"},
        {"onnxruntime-gpu": "1.26.0", "faiss-gpu": "1.15.1"},
        {"onnxruntime-gpu": "1.31.1", "faiss-gpu-cuvs": "1.15.1"},
    ],
    ids=["none", "cpu", "gpu", "gpu-cu13"],
)
def test_each_extra_alone_is_sound(packages: dict[str, str]) -> None:
    assert conflicts(packages) == []


def played_onnxruntime(listed: list[str], working: list[str]) -> SimpleNamespace:
    """A stand-in for an onnxruntime with CUDA compiled in, because tests have no GPU."""
    return SimpleNamespace(
        __version__="1.31.1",
        get_available_providers=lambda: [*listed, "CPUExecutionProvider"],
        SessionOptions=SimpleNamespace,
        InferenceSession=lambda *_, providers: SimpleNamespace(
            get_providers=lambda: [p for p in providers if p in (*working, "CPUExecutionProvider")]
        ),
    )


def test_a_session_that_falls_back_to_the_cpu_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = played_onnxruntime(["TensorrtExecutionProvider", "CUDAExecutionProvider"], [])
    monkeypatch.setitem(sys.modules, "onnxruntime", fake)
    report = examine()
    assert dict(report.facts)["onnxruntime"] == "1.31.1, runs on CPUExecutionProvider"
    assert any("a session falls back to the CPU" in problem for problem in report.problems)


def test_cuda_without_tensorrt_is_sound(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = "CUDAExecutionProvider"
    fake = played_onnxruntime(["TensorrtExecutionProvider", cuda], [cuda])
    monkeypatch.setitem(sys.modules, "onnxruntime", fake)
    report = examine()
    assert dict(report.facts)["onnxruntime"].endswith(f"runs on {cuda}, CPUExecutionProvider")
    assert report.problems == []


def test_missing_and_broken_libraries_are_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: object) -> str:
        raise ImportError("libcudart.so.12: cannot open shared object file")

    for name in ("torch", "onnxruntime"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setattr(doctor, "_faiss", broken)
    report = examine()
    assert dict(report.facts)["torch"] == "not installed"
    assert "for training and export: install couce[train]" in report.advice
    assert any("onnxruntime is missing: install one of couce[cpu]" in p for p in report.problems)
    assert any("faiss does not work: libcudart.so.12" in problem for problem in report.problems)
