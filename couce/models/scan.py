"""Whether an ONNX file reaches for other files, found out before any engine opens it.

A tensor may name a file that holds its data. Engines have followed such names out of the model's
folder (onnxruntime did until 1.27), which lets a hostile model read any file into its weights. CouCE's
models are single files, so any such name is refused. The ``onnx`` package, which would show it, is not
installed where models are served: this walks just the fields that lead to tensors.
"""

from collections.abc import Iterator

from couce.errors import CouceError

_DEEPEST = 100  # protobuf's own limit

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
                # A location of 0 is the file itself.
                if number == _EXTERNAL_DATA or (number == _DATA_LOCATION and value != 0):
                    raise CouceError(
                        "it keeps its weights in other files; save it as one file"
                        " (onnx.save with save_as_external_data=False)"
                    )
            elif number in _FIELDS[message]:
                if not isinstance(value, memoryview):
                    raise CouceError("it is not an ONNX file")
                waiting.append((_FIELDS[message][number], value, depth + 1))


def _fields(content: memoryview) -> Iterator[tuple[int, memoryview | int]]:
    """The fields of a protobuf message: their numbers, with bytes or whole numbers as they come."""
    at = 0
    while at < len(content):
        key, at = _varint(content, at)
        # Parsers cut a longer key off and may see another field in it than we would.
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
