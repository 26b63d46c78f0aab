"""The description of an exported model. The ONNX file has it in its metadata."""

import json
from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import Field, field_validator

from couce.config import Settings
from couce.errors import CouceError
from couce.preprocess import Preprocess

FORMAT = 1
Precision = Literal["fp32", "fp16", "int8"]
_KEY = "couce"  # the key in the metadata; its value is JSON


class ModelInfo(Settings):
    """The description of a model that `couce export` made.

    The input ``image`` is uint8 (N, crop, crop, 3) or float (N, 3, crop, crop), always RGB. Float
    values are from 0 to 1. The graph itself changes the channel order and applies mean and std.
    """

    format: int = FORMAT
    input: Literal["uint8", "float"]
    precision: Precision
    backbone: str
    dim: int = Field(ge=1)
    preprocess: dict[str, Any]  # from Preprocess.to_dict
    weights: str  # the sha256 of the trained weights, before any conversion to fp16 or int8
    dataset: str
    # Fractions, measured in training on the classes that the best checkpoint was chosen by.
    metrics: dict[str, float]
    licence: str
    couce: str  # the version of CouCE that exported the model

    @field_validator("preprocess")
    @classmethod
    def _known_preprocessing(cls, value: dict[str, Any]) -> dict[str, Any]:
        return Preprocess.from_dict(value).to_dict()

    def to_metadata(self) -> dict[str, str]:
        return {_KEY: self.model_dump_json()}

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, str]) -> Self | None:
        """The description in the metadata of an ONNX file; None if it is not a model of CouCE."""
        if _KEY not in metadata:
            return None
        try:
            values = json.loads(metadata[_KEY])
        except (ValueError, RecursionError):
            raise CouceError("its description is damaged: it is not JSON") from None
        found = values.get("format") if isinstance(values, dict) else None
        if found != FORMAT:
            raise CouceError(
                f"its description has the format {found!r}, but this version of CouCE reads the"
                f" format {FORMAT}"
            )
        return cls.parse(values)
