"""The structure of an ONNX graph without the values of its weights, to compare two models."""

import hashlib
import json
import math
from typing import Any, NamedTuple

import onnx
from onnx import numpy_helper


class GraphStructure(NamedTuple):
    nodes: tuple[str, ...]  # in order, as texts: operator, attributes, shapes, connections
    parameters: int
    # For one image: the multiplications and additions of convolutions and matrix products.
    flops: int

    @property
    def digest(self) -> str:
        return hashlib.sha256("\n".join(self.nodes).encode()).hexdigest()


def structure(proto: onnx.ModelProto) -> GraphStructure:
    """The structure of a graph: everything except the values of its weights.

    The text of a connection is the number of the node from which it comes. The text of a weight is
    its type and shape. Integers and single numbers (axes, limits, shapes) determine what is
    computed, so their texts include the values.
    """
    graph = _with_shapes(proto)
    shapes = _shapes(graph)
    origin = {value.name: f"input {value.name}" for value in graph.input}
    sizes: dict[str, int] = {}
    for tensor in graph.initializer:
        steers = tensor.data_type == onnx.TensorProto.INT64 or math.prod(tensor.dims) == 1
        value = f" {numpy_helper.to_array(tensor).tolist()}" if steers else ""
        kind = onnx.TensorProto.DataType.Name(tensor.data_type)
        origin[tensor.name] = f"weight {kind}{list(tensor.dims)}{value}"
        sizes[tensor.name] = 0 if steers else math.prod(tensor.dims)
    nodes, parameters, flops = [], 0, 0
    for place, node in enumerate(graph.node):
        attributes = {
            attribute.name: _attribute(attribute)
            for attribute in sorted(node.attribute, key=lambda a: a.name)
        }
        sources = [origin[name] if name else "nothing" for name in node.input]
        outputs = [shapes.get(name, "unknown") for name in node.output]
        nodes.append(
            f"{node.domain or 'ai.onnx'}.{node.op_type} {json.dumps(attributes)}"
            f" <- {sources} -> {outputs}"
        )
        for number, name in enumerate(node.output):
            origin[name] = f"node {place}.{number}"
        # A weight counts at each use, because the exporter stores equal weights only once.
        parameters += sum(sizes.get(name, 0) for name in node.input)
        flops += _flops(node, shapes)
    nodes += [f"output {value.name} <- {origin[value.name]}" for value in graph.output]
    return GraphStructure(tuple(nodes), parameters, flops)


def differences(one: GraphStructure, other: GraphStructure) -> list[str]:
    """Sentences about what differs. The list is empty for identical structures."""
    found = []
    if len(one.nodes) != len(other.nodes):
        found.append(f"{len(one.nodes)} nodes instead of {len(other.nodes)}")
    found += [
        f"node {place}: {a} instead of {b}"
        for place, (a, b) in enumerate(zip(one.nodes, other.nodes, strict=False))
        if a != b
    ][:3]
    for what in ("parameters", "flops"):
        if getattr(one, what) != getattr(other, what):
            found.append(f"{getattr(one, what)} {what} instead of {getattr(other, what)}")
    return found


def _with_shapes(proto: onnx.ModelProto) -> onnx.GraphProto:
    """The graph for a batch of one image, with the inferred shape of every value."""
    one = onnx.ModelProto()
    one.CopyFrom(proto)
    for value in (*one.graph.input, *one.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = 1
    del one.graph.value_info[:]
    return onnx.shape_inference.infer_shapes(one, strict_mode=True, data_prop=True).graph


def _shapes(graph: onnx.GraphProto) -> dict[str, list[int]]:
    shapes = {tensor.name: list(tensor.dims) for tensor in graph.initializer}
    for value in (*graph.input, *graph.value_info, *graph.output):
        shapes[value.name] = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
    return shapes


def _attribute(attribute: onnx.AttributeProto) -> Any:
    value = onnx.helper.get_attribute_value(attribute)
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, onnx.TensorProto):
        return numpy_helper.to_array(value).tolist()
    return list(value) if not isinstance(value, int | float | str) else value


def _flops(node: onnx.NodeProto, shapes: dict[str, list[int]]) -> int:
    if node.op_type == "Conv":
        # Each output value is a sum over the kernel and the input channels of its group.
        return 2 * math.prod(shapes[node.output[0]]) * math.prod(shapes[node.input[1]][1:])
    if node.op_type in ("Gemm", "MatMul"):
        transposed = any(a.name == "transA" and a.i for a in node.attribute)
        inner = shapes[node.input[0]][0 if transposed else -1]
        return 2 * math.prod(shapes[node.output[0]]) * inner
    return 0
