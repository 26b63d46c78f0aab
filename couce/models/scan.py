"""Finds out whether an ONNX file refers to other files, before onnxruntime opens it.

A tensor may name a file that has its data. Engines have followed such names out of the folder of
the model (onnxruntime did until 1.27), so that a hostile model could read any file as its weights.
The models of CouCE are single files, so any such name is refused. The ``onnx`` package could show
these names, but it is not installed where models are served. So this module reads the protobuf
itself, only the fields that lead to tensors.
"""

from collections.abc import Iterator

from couce.errors import CouceError

_DEEPEST = 100  # the limit of protobuf itself

# Message: {field number: message}. onnx.proto3, as of ONNX 1.19.
_FIELDS: dict[str, dict[int, str]] = {
    "model": {7: "graph", 20: "training", 25: "function"},
    "training": {1: "graph", 2: "graph"},
    "function": {7: "node", 11: "attribute"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
}
_EXTERNAL_DATA, _DATA_LOCATION = 13, 14  # of a tensor


def refuse_external_data(model: bytes) -> None:
    """Raises CouceError if a tensor of this ONNX file keeps its data in another file."""
    waiting = [("model", memoryview(model), 0)]
    while waiting:
        message, content, depth = waiting.pop()
        if depth > _DEEPEST:
            raise CouceError("it is not an ONNX file: it is nested too deeply")
        for number, value in _fields(content):
            if message == "tensor":
                # The location 0 is the ONNX file itself.
                if number == _EXTERNAL_DATA or (number == _DATA_LOCATION and value != 0):
                    raise CouceError(
                        "it has its weights in other files; save it as one file"
                        " (onnx.save with save_as_external_data=False)"
                    )
            elif number in _FIELDS[message]:
                if not isinstance(value, memoryview):
                    raise CouceError("it is not an ONNX file")
                waiting.append((_FIELDS[message][number], value, depth + 1))


def _fields(content: memoryview) -> Iterator[tuple[int, memoryview | int]]:
    """The fields of a protobuf message: each field's number and its bytes or whole number."""
    at = 0
    while at < len(content):
        key, at = _varint(content, at)
        # Parsers cut a longer key to 32 bits and would read another field than this function.
        if key >= 2**32:
            raise CouceError("it is not an ONNX file")
        number, kind = key >> 3, key & 7
        value: memoryview | int
        if kind == 0:
            value, at = _varint(content, at)
        elif kind in (1, 5):
            end = at + (8 if kind == 1 else 4)
            value, at = int.from_bytes(content[at:end], "little"), end
        elif kind == 2:
            length, at = _varint(content, at)
            value, at = content[at : at + length], at + length
        else:
            raise CouceError("it is not an ONNX file")
        if at > len(content):
            raise CouceError("it is not an ONNX file, or it is cut off")
        yield number, value


def _varint(content: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(content) and shift < 70:
        byte = content[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at
    raise CouceError("it is not an ONNX file, or it is cut off")
