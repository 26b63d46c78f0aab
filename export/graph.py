"""The plain embedding model as an ONNX graph."""

import ast
import contextlib
import copy
import io
import logging
import warnings
from collections import Counter
from collections.abc import Iterator
from typing import Literal

import onnx
import torch
from torch import Tensor, nn

from couce.errors import CouceError
from couce.network import EmbeddingNetwork, Normalise
from couce.preprocess import Preprocess

# The oldest supported onnxruntime is 1.20. It implements all operators of this opset that the
# exported models use, in all their precisions.
OPSET = 20

_LARGEST = 2 * 10**9  # bytes; the limit of protobuf for one file

Input = Literal["uint8", "float"]


class PlainModel(nn.Module):
    """The exported model: makes embeddings of unit length from pixels.

    The graph includes the channel order, mean and std that the backbone needs.

    Args:
        network: the trained network.
        preprocess: the preprocessing of the network.
        kind: the input: ``uint8`` (N, H, W, 3) or ``float`` (N, 3, H, W) from 0 to 1. Both are RGB.
        half: compute the network in float16, for GPUs. The normalisations of pixels and embeddings
            stay in float32, because squares of large embeddings would overflow in float16.
    """

    def __init__(
        self, network: EmbeddingNetwork, preprocess: Preprocess, kind: Input, half: bool = False
    ) -> None:
        super().__init__()
        self.kind = kind
        self.half_precision = half
        self.normalise = Normalise(preprocess)
        self.network = copy.deepcopy(network).half() if half else network

    def forward(self, image: Tensor) -> Tensor:
        if self.kind == "float":
            image = (image * 255).permute(0, 2, 3, 1)
        normalised = self.normalise(image)
        m = self.network(normalised.half() if self.half_precision else normalised).float()
        # F.normalize would export a shape that is computed at run time.
        return m / m.norm(dim=1, keepdim=True).clamp_min(1e-12)

    def example(self, crop: int, batch: int = 2) -> Tensor:
        if self.kind == "float":
            return torch.rand(batch, 3, crop, crop)
        return torch.randint(0, 256, (batch, crop, crop, 3), dtype=torch.uint8)


def to_onnx(
    network: EmbeddingNetwork, preprocess: Preprocess, kind: Input, half: bool = False
) -> onnx.ModelProto:
    """The ONNX graph ``image`` -> ``embedding`` with a dynamic batch size and names by layer."""
    model = PlainModel(network, preprocess, kind, half).eval()
    with quiet(), torch.no_grad():
        program = torch.onnx.export(
            model,
            (model.example(preprocess.crop),),
            input_names=["image"],
            output_names=["embedding"],
            dynamic_shapes=({0: torch.export.Dim("batch", min=1)},),
            opset_version=OPSET,
            dynamo=True,
            verbose=False,
        )
    if program is None:
        raise RuntimeError("torch exported nothing")
    proto = program.model_proto
    if proto.ByteSize() >= _LARGEST:
        raise CouceError("the model is larger than 2 GB, the limit of one ONNX file")
    _name_by_layer(proto)
    return proto


def _name_by_layer(proto: onnx.ModelProto) -> None:
    """Gives nodes names like "backbone.stage1.layer2.0.body.1/Conv", and removes torch's notes.

    These notes are stack traces, which contain paths of this machine.
    """
    seen: Counter[str] = Counter()
    for node in proto.graph.node:
        scopes = next(
            (p.value for p in node.metadata_props if p.key == "pkg.torch.onnx.name_scopes"), "['']"
        )
        modules = [scope for scope in ast.literal_eval(scopes)[:-1] if not scope.startswith("_")]
        layer = (modules[-1] if modules else "").removeprefix("network.")
        name = f"{layer}/{node.op_type}"
        seen[name] += 1
        node.name = name if seen[name] == 1 else f"{name}_{seen[name]}"
        node.doc_string = ""
        del node.metadata_props[:]
    for part in (
        proto,
        proto.graph,
        *proto.graph.value_info,
        *proto.graph.input,
        *proto.graph.output,
    ):
        part.doc_string = ""
        del part.metadata_props[:]
    for tensor in proto.graph.initializer:
        tensor.doc_string = ""
        del tensor.metadata_props[:]


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silences the exporter and the quantiser: logging, warnings, and both output streams."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
