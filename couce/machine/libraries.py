"""The engines of the extras cpu, gpu and gpu-cu13, imported when they are needed."""

import os
from importlib import import_module
from typing import Any

from couce.errors import CouceError


def import_library(name: str) -> Any:
    """``faiss`` or ``onnxruntime``; where it is missing, an error that says what to install."""
    # onnxruntime, from 1.29 on, would report to its makers which models are used and how.
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    try:
        return import_module(name)
    except ImportError as error:
        raise CouceError(
            f"{name} is not installed; install couce[cpu], or couce[gpu] where there is CUDA"
        ) from error
