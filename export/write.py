"""Writes the ONNX file: adds its description, checks it, and replaces the file in one step."""

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
    """The description that the file contains, made from the content of its checkpoint."""
    # Only names, never a path of the machine that trained the model.
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
                f"Trained with CouCE (Apache-2.0) on the data set {data!r} from {start!r} weights:"
                " the terms of both apply to this model."
            ),
            "couce": __version__,
        }
    )


def weights_hash(state: Mapping[str, torch.Tensor]) -> str:
    """The sha256 of all names, types, shapes and values, in the order of the names."""
    digest = hashlib.sha256()
    for name in sorted(state):
        array = state[name].detach().cpu().contiguous().numpy()
        digest.update(f"{name} {array.dtype} {array.shape}\n".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def serialise(proto: onnx.ModelProto, info: ModelInfo) -> bytes:
    """The bytes of the ONNX file, after adding the description and checking the model."""
    onnx.helper.set_model_props(proto, info.to_metadata())
    proto.producer_name, proto.producer_version = "couce", __version__
    onnx.checker.check_model(proto, full_check=True)
    return proto.SerializeToString()


def write(path: Path, content: bytes) -> None:
    try:
        replace_file(path, lambda part: part.write_bytes(content))
    except OSError as error:
        raise CouceError(
            f"{path} could not be written ({error.strerror}); choose another place, or make room"
        ) from error
