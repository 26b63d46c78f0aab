"""Full precision for losses, whose exponentials and variances autocast would make inexact."""

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import torch
from torch import Tensor

_F = TypeVar("_F", bound=Callable[..., Any])


def full_precision(function: _F) -> _F:
    """Makes ``function`` run with autocast off and its half-precision tensors in float32."""

    @wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        tensors = [x for x in (*args, *kwargs.values()) if isinstance(x, Tensor)]
        wide = [at_least_float32(arg) for arg in args]
        wide_named = {name: at_least_float32(arg) for name, arg in kwargs.items()}
        with torch.autocast(tensors[0].device.type, enabled=False):
            return function(*wide, **wide_named)

    return wrapped  # type: ignore[return-value]


def at_least_float32(x: Any) -> Any:
    """``x`` as float32 if it is a tensor of half precision, otherwise unchanged."""
    narrow = isinstance(x, Tensor) and x.is_floating_point() and x.dtype != torch.float64
    return x.float() if narrow else x
