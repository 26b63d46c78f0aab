"""Quantisation of a model to 8-bit integers, which makes it smaller and faster on CPUs."""

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from couce.errors import CouceError
from couce.export.graph import quiet

# These operators are computed in 8 bits. Pooling, head and l2-normalisation stay in float32: they
# take hardly any time, and their rounding would directly change the embedding.
_QUANTISED = ["Conv", "Add", "Relu", "Clip", "MaxPool", "AveragePool", "Concat"]
_CALIBRATION_BATCH = 8


def to_int8(
    proto: onnx.ModelProto, feeds: NDArray[Any], skipped: Sequence[str] = ()
) -> onnx.ModelProto:
    """The model with static quantisation per channel (QuantizeLinear and DequantizeLinear pairs).

    Args:
        proto: the model in float32.
        feeds: inputs of the model, from which the ranges of all values are measured.
        skipped: the layers that stay in float32, by the start of the names of their nodes.
    """
    from onnxruntime import quantization as q

    class Reader(q.CalibrationDataReader):  # type: ignore[misc]  # untyped
        def __init__(self) -> None:
            starts = range(0, len(feeds), _CALIBRATION_BATCH)
            self._parts: Iterator[NDArray[Any]] = (
                feeds[start : start + _CALIBRATION_BATCH] for start in starts
            )

        def get_next(self) -> dict[str, NDArray[Any]] | None:
            part = next(self._parts, None)
            return None if part is None else {"image": part}

    with tempfile.TemporaryDirectory() as folder, quiet():
        source, target = Path(folder) / "fp32.onnx", Path(folder) / "int8.onnx"
        onnx.save(proto, source)
        # This folds constants and BatchNorm into convolutions, and infers the shapes.
        q.quant_pre_process(str(source), str(source), skip_symbolic_shape=True)
        names = [node.name for node in onnx.load(source).graph.node]
        q.quantize_static(
            str(source),
            str(target),
            Reader(),
            quant_format=q.QuantFormat.QDQ,
            op_types_to_quantize=_QUANTISED,
            per_channel=True,
            # The integer instructions of x86 CPUs multiply unsigned values with signed weights.
            activation_type=q.QuantType.QUInt8,
            weight_type=q.QuantType.QInt8,
            nodes_to_exclude=[name for name in names if in_layers(name, skipped)],
            calibrate_method=q.CalibrationMethod.MinMax,
        )
        return onnx.load(target)


def in_layers(node: str, layers: Iterable[str]) -> bool:
    return any(node == layer or node.startswith((f"{layer}.", f"{layer}/")) for layer in layers)


def layers_of(proto: onnx.ModelProto) -> list[str]:
    """The layers of both stages that have a convolution, by the start of their nodes' names."""
    found = (
        ".".join(node.name.split("/")[0].split(".")[:3])
        for node in proto.graph.node
        if node.op_type == "Conv"
    )
    return list(dict.fromkeys(found))


def harm_by_layer(
    proto: onnx.ModelProto, feeds: NDArray[Any], sample: NDArray[Any], run: Any
) -> dict[str, float]:
    """The harm of quantising each layer alone, as the mean of 1 − cosine. The worst comes first.

    The cosine is that between an embedding of ``sample`` in 8 bits and in float32. ``run`` computes
    the embeddings of a model. ``feeds`` are the images for calibration.
    """
    expected = run(proto, sample)
    layers = layers_of(proto)
    harm = {}
    for layer in layers:
        others = [other for other in layers if other != layer]
        rows = run(to_int8(proto, feeds, others), sample)
        harm[layer] = float(1 - np.mean((rows * expected).sum(axis=1)))
    if not harm:
        raise CouceError("the model has no convolution that int8 could quantise; use fp32 or fp16")
    return dict(sorted(harm.items(), key=lambda pair: -pair[1]))
