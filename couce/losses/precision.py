"""Losses in full precision: under autocast their exponentials and variances would not survive."""

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import torch
from torch import Tensor

_F = TypeVar("_F", bound=Callable[..., Any])


def full_precision(function: _F) -> _F:
    """Computes ``function`` with autocast off and its tensors widened to float32 (float64 stays)."""

    @wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        tensors = [x for x in (*args, *kwargs.values()) if isinstance(x, Tensor)]
        wide = [at_least_float32(arg) for arg in args]
        wide_named = {name: at_least_float32(arg) for name, arg in kwargs.items()}
        with torch.autocast(tensors[0].device.type, enabled=False):
            return function(*wide, **wide_named)

    return wrapped  # type: ignore[return-value]


def at_least_float32(x: Any) -> Any:
    """A tensor of half precision as float32; anything else as it is."""
    narrow = isinstance(x, Tensor) and x.is_floating_point() and x.dtype != torch.float64
    return x.float() if narrow else x
