"""Batch normalisation for a batch that holds two views of the same images."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from couce.losses.precision import at_least_float32


class TwoViewBatchNorm2d(nn.BatchNorm2d):
    """A BatchNorm2d for a batch of a clean and an intervened view, which it does not mix.

    Within :func:`two_views` and in training mode, each half of the batch is normalised by its own
    statistics, as in two separate passes. Only the clean half updates the running statistics,
    because the exported model is the clean one. With several processes, the statistics are those
    of the whole batch. In all other cases, this is a plain BatchNorm2d.
    """

    two_views = False

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return super().forward(x)
        if not self.two_views:
            return self._normalise(x, clean=True)
        clean, intervened = x.chunk(2)
        return torch.cat(
            [self._normalise(clean, clean=True), self._normalise(intervened, clean=False)]
        )

    def _normalise(self, x: Tensor, clean: bool) -> Tensor:
        if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
            return self._across_processes(x, clean)
        if clean:
            return super().forward(x)
        return F.batch_norm(x, None, None, self.weight, self.bias, training=True, eps=self.eps)

    def _across_processes(self, x: Tensor, clean: bool) -> Tensor:
        """Normalises ``x`` by the statistics of all processes.

        torch's SyncBatchNorm works on GPUs only and has no two views.
        """
        wide = at_least_float32(x)
        count = x.numel() // x.shape[1] * dist.get_world_size()
        mean = _SumOfProcesses.apply(wide.sum(dim=(0, 2, 3))) / count  # (C,)
        centred = wide - mean.view(1, -1, 1, 1)
        variance = _SumOfProcesses.apply(centred.square().sum(dim=(0, 2, 3))) / count
        if clean:
            assert self.running_mean is not None  # noqa: S101 (for the type checker)
            assert self.running_var is not None  # noqa: S101
            assert self.num_batches_tracked is not None  # noqa: S101
            with torch.no_grad():
                self.running_mean.lerp_(mean.to(self.running_mean), self.momentum or 0.0)
                unbiased = variance * count / max(count - 1, 1)
                self.running_var.lerp_(unbiased.to(self.running_var), self.momentum or 0.0)
                self.num_batches_tracked.add_(1)
        scale = self.weight * torch.rsqrt(variance + self.eps)
        return (centred * scale.view(1, -1, 1, 1) + self.bias.view(1, -1, 1, 1)).to(x.dtype)


class _SumOfProcesses(torch.autograd.Function):
    """The sum over all processes, on each of them. Its gradient is such a sum as well."""

    @staticmethod
    def forward(_ctx: Any, x: Tensor) -> Tensor:
        total = x.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(_ctx: Any, gradient: Tensor) -> Tensor:
        total = gradient.clone()
        dist.all_reduce(total)
        return total


def accept_two_views(module: nn.Module) -> None:
    """Turns every plain BatchNorm2d of ``module`` into a TwoViewBatchNorm2d, in place."""
    for child in module.modules():
        if type(child) is nn.BatchNorm2d:
            # Only ``forward`` differs, so weights, statistics and hooks stay as they are.
            child.__class__ = TwoViewBatchNorm2d


@contextmanager
def two_views(module: nn.Module) -> Iterator[None]:
    """Makes ``module`` take batches (2N, ...) of N clean rows and their N intervened copies."""
    norms = []
    for child in module.modules():
        if isinstance(child, TwoViewBatchNorm2d):
            norms.append(child)
        elif isinstance(child, nn.modules.batchnorm._BatchNorm) and child.training:
            raise TypeError(
                f"{type(child).__name__} would mix the two views in its running statistics;"
                " use BatchNorm2d, or set it to evaluation mode"
            )
    for norm in norms:
        norm.two_views = True
    try:
        yield
    finally:
        for norm in norms:
            norm.two_views = False
