"""What an exported model says of itself: kept in the metadata of the ONNX file, read without torch."""

import json
from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import Field, field_validator

from couce.config import Settings
from couce.errors import CouceError
from couce.preprocess import Preprocess

FORMAT = 1
Precision = Literal["fp32", "fp16", "int8"]
_KEY = "couce"  # under which the file keeps it, as JSON


class ModelInfo(Settings):
    """Input is ``image``: uint8 (N, crop, crop, 3) or float (N, 3, crop, crop), RGB either way.

    A float input has values from 0 to 1. Channel order, mean and std are the graph's own business.
    """

    format: int = FORMAT
    input: Literal["uint8", "float"]
    precision: Precision
    backbone: str
    dim: int = Field(ge=1)
    preprocess: dict[str, Any]  # of Preprocess.to_dict
    weights: str  # sha256 of the weights that were trained, whatever precision they are stored in
    dataset: str
    metrics: dict[
        str, float
    ]  # fractions, as measured in training on the classes that chose the best
    licence: str
    couce: str  # the version that wrote it

    @field_validator("preprocess")
    @classmethod
    def _known_preprocessing(cls, value: dict[str, Any]) -> dict[str, Any]:
        return Preprocess.from_dict(value).to_dict()

    def to_metadata(self) -> dict[str, str]:
        return {_KEY: self.model_dump_json()}

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, str]) -> Self | None:
        """None for a model that is not CouCE's."""
        if _KEY not in metadata:
            return None
        try:
            values = json.loads(metadata[_KEY])
        except (ValueError, RecursionError):
            raise CouceError("its description is not JSON") from None
        found = values.get("format") if isinstance(values, dict) else None
        if found != FORMAT:
            raise CouceError(f"its format is {found!r}, and this version of CouCE reads {FORMAT}")
        return cls.parse(values)
