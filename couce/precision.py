"""Losses in full precision: under autocast their exponentials and variances would not survive."""

import torch
from torch import Tensor


def at_least_float32(x: Tensor) -> Tensor:
    """``x`` as float32, or as float64 if it is that already."""
    return x if x.dtype == torch.float64 else x.float()


def no_autocast(x: Tensor) -> torch.autocast:
    """A context in which operations on ``x``'s device keep the types they are given."""
    return torch.autocast(x.device.type, enabled=False)
