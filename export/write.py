"""The ONNX file: described, checked, written whole or not at all."""

import hashlib
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx
import torch

from couce import __version__
from couce.errors import CouceError
from couce.export.graph import Input
from couce.files import replace_file
from couce.models.info import ModelInfo
from couce.preprocess import Preprocess


def describe(content: Mapping[str, Any], preprocess: Preprocess, kind: Input) -> ModelInfo:
    """What the file is to say of itself, from the content of its checkpoint."""
    # Names alone, never a path of the machine it was trained on.
    data = Path(content.get("data", {}).get("name", "unknown")).name
    start = Path(content.get("settings", {}).get("weights", "unknown")).name
    metrics = content.get("metrics") or {}
    return ModelInfo.parse(
        {
            "input": kind,
            "precision": "fp32",
            "backbone": content["model"]["backbone"],
            "dim": content["model"]["dim"],
            "preprocess": preprocess.to_dict(),
            "weights": weights_hash(content["network"]),
            "dataset": data,
            "metrics": {name: value for name, value in metrics.items() if math.isfinite(value)},
            "licence": (
                f"Trained with CouCE (Apache-2.0) on the data set {data!r} from {start!r} weights: the"
                " terms of both apply to this model."
            ),
            "couce": __version__,
        }
    )


def weights_hash(state: Mapping[str, torch.Tensor]) -> str:
    """sha256 of all names, shapes and values, in the order of the names."""
    digest = hashlib.sha256()
    for name in sorted(state):
        array = state[name].detach().cpu().contiguous().numpy()
        digest.update(f"{name} {array.dtype} {array.shape}\n".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def serialise(proto: onnx.ModelProto, info: ModelInfo) -> bytes:
    """The described and checked model as the bytes of one file."""
    onnx.helper.set_model_props(proto, info.to_metadata())
    proto.producer_name, proto.producer_version = "couce", __version__
    onnx.checker.check_model(proto, full_check=True)
    return proto.SerializeToString()


def write(path: Path, content: bytes) -> None:
    try:
        replace_file(path, lambda part: part.write_bytes(content))
    except OSError as error:
        raise CouceError(f"{path} could not be written: {error.strerror}") from error
