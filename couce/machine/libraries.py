"""Imports the libraries of the extras cpu, gpu and gpu-cu13 when they are needed."""

import os
from importlib import import_module
from typing import Any

from couce.errors import CouceError


def import_library(name: str) -> Any:
    """Imports ``faiss`` or ``onnxruntime``. If it is missing, the error says what to install."""
    # From version 1.29 on, onnxruntime would report to its makers which models are used and how.
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    try:
        return import_module(name)
    except ImportError as error:
        raise CouceError(
            f"{name} is not installed; install couce[cpu], or couce[gpu] for a GPU with CUDA"
        ) from error
