"""Checks that the exported model computes the same as the trained one on images."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import onnx
import torch
from numpy.typing import NDArray

from couce.errors import CouceError
from couce.export.graph import PlainModel

BATCHES = (1, 2, 7, 32)
LEAST_COSINE = 0.9999
# Two neighbours whose similarities differ by less are a tie, which rounding may decide.
_TIE = 1e-5


class Parity(NamedTuple):
    images: int
    cosine: float  # the smallest over all images and batch sizes


def check_parity(
    model: PlainModel, proto: onnx.ModelProto, pixels: NDArray[np.uint8], names: Sequence[str]
) -> Parity:
    """Compares torch with onnxruntime on images (N, H, W, 3), in batches of several sizes.

    A difference beyond the limits is an error. It names the worst image, and the layer in which
    the difference arises.
    """
    # With too few images, some are repeated to fill the largest batch.
    if len(pixels) < max(BATCHES):
        places = np.arange(max(BATCHES)) % len(pixels)
        pixels, names = pixels[places], [names[int(place)] for place in places]
    feeds = as_input(model, pixels)
    expected = _by_torch(model, feeds)  # (N, d)
    session = open_session(proto)
    cosines = np.ones(len(feeds))
    for size in BATCHES:
        rows = np.concatenate(
            [session.run(None, {"image": part})[0] for part in _batches(feeds, size)]
        )
        if rows.shape != expected.shape or not np.isfinite(rows).all():
            raise CouceError(
                f"the exported model returns an array {rows.shape} instead of {expected.shape}, or"
                " values that are not finite; nothing was written"
            )
        cosines = np.minimum(cosines, (rows * expected).sum(axis=1))
        same = _same_neighbours(rows, expected)
        if cosines.min() < LEAST_COSINE or not same.all():
            turned = cosines.min() < LEAST_COSINE
            worst = int(cosines.argmin() if turned else np.argmin(same))
            what = (
                f"has a cosine of {cosines[worst]:.6f}, and the least allowed is {LEAST_COSINE}"
                if turned
                else f"has another nearest neighbour (as {100 * (1 - same.mean()):.1f} % of all)"
            )
            layer, difference = _first_difference(model, proto, feeds[worst : worst + 1])
            raise CouceError(
                f"the exported model differs from the trained one: with batch size {size},"
                f" {names[worst]} {what}; the largest relative difference, {difference:.1e}, arises"
                f" in {layer}; nothing was written"
            )
    return Parity(len(feeds), float(cosines.min()))


def as_input(model: PlainModel, pixels: NDArray[np.uint8]) -> NDArray[Any]:
    if model.kind == "uint8":
        return pixels
    return np.ascontiguousarray(np.moveaxis(pixels, -1, 1)).astype(np.float32) / np.float32(255)


def open_session(proto: onnx.ModelProto, threads: int = 0) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = threads
    content = proto.SerializeToString()
    return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def _by_torch(model: PlainModel, feeds: NDArray[Any]) -> NDArray[np.float32]:
    with torch.inference_mode():
        parts = [model(torch.from_numpy(part)).numpy() for part in _batches(feeds, 32)]
    return np.concatenate(parts)


def _batches(feeds: NDArray[Any], size: int) -> list[NDArray[Any]]:
    return [feeds[start : start + size] for start in range(0, len(feeds), size)]


def _same_neighbours(rows: NDArray[np.float32], expected: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Whether each row (n, d) has a nearest neighbour that is also the nearest in ``expected``."""
    near, truly_near = (x @ x.T for x in (rows, expected))
    for similarities in (near, truly_near):
        np.fill_diagonal(similarities, -np.inf)
    found = np.take_along_axis(truly_near, near.argmax(axis=1, keepdims=True), axis=1)
    return found[:, 0] >= truly_near.max(axis=1) - _TIE


def _first_difference(
    model: PlainModel, proto: onnx.ModelProto, feed: NDArray[Any]
) -> tuple[str, float]:
    """The layer in which the difference to torch grows the most, and this growth.

    A difference is relative to the largest value of the layer.
    """
    layers = _layers(model)
    outputs = {
        layer: node.output[0]
        for layer in layers
        for node in proto.graph.node  # the last node of a layer wins
        if f"{node.name}/".startswith((f"{layer}.", f"{layer}/"))
    }
    opened = onnx.ModelProto()
    opened.CopyFrom(proto)
    known = {output.name for output in opened.graph.output}
    opened.graph.output.extend(
        onnx.ValueInfoProto(name=name) for name in set(outputs.values()) - known
    )
    found = dict(
        zip(
            outputs,
            open_session(opened).run(list(outputs.values()), {"image": feed}),
            strict=True,
        )
    )
    expected: dict[str, NDArray[Any]] = {}
    # The outputs are copied, because a later layer may overwrite them in place.
    hooks = [
        module.register_forward_hook(
            lambda _module, _inputs, output, layer=layer: expected.update(
                {layer: output.numpy().copy()}
            )
        )
        for layer, module in layers.items()
    ]
    with torch.inference_mode():
        model(torch.from_numpy(feed))
    for hook in hooks:
        hook.remove()
    worst, largest, before = "the input", 0.0, 0.0
    for layer in outputs:
        scale = float(np.abs(expected[layer]).max()) or 1.0
        difference = float(np.abs(found[layer] - expected[layer]).max()) / scale
        if difference - before > largest:
            worst, largest = layer, difference - before
        before = difference
    return worst, largest


def _layers(model: PlainModel) -> dict[str, torch.nn.Module]:
    """The layers of both stages and the head, in order, by the names of their nodes."""
    backbone = model.network.backbone
    stages = {"backbone.stage1": backbone.stage1, "backbone.stage2": backbone.stage2}
    layers = {f"{s}.{name}": child for s, m in stages.items() for name, child in m.named_children()}
    return {"normalise": model.normalise, **layers, "head": model.network.head}
