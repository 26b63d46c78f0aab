"""Batch normalisation for a batch that holds two views of the same images."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class TwoViewBatchNorm2d(nn.BatchNorm2d):
    """BatchNorm2d that can take a clean and an intervened view, stacked, without mixing them.

    Inside :func:`two_views` and in training mode, each half is normalised by its own statistics, as
    two passes would do, and only the clean half reaches the running ones: the model that is
    exported is the clean model. Anywhere else it is a plain BatchNorm2d.
    """

    two_views = False

    def forward(self, x: Tensor) -> Tensor:
        if not (self.training and self.two_views):
            return super().forward(x)
        clean, intervened = x.chunk(2)
        normalised = F.batch_norm(
            intervened, None, None, self.weight, self.bias, training=True, eps=self.eps
        )
        return torch.cat([super().forward(clean), normalised])


@contextmanager
def two_views(module: nn.Module) -> Iterator[None]:
    """What goes through ``module`` here is (2N, ...): N clean rows, then their intervened copies."""
    norms = []
    for child in module.modules():
        if isinstance(child, TwoViewBatchNorm2d):
            norms.append(child)
        elif isinstance(child, nn.modules.batchnorm._BatchNorm) and child.training:
            raise TypeError(
                f"{type(child).__name__} would mix the two views into its running statistics;"
                " use TwoViewBatchNorm2d, or freeze it"
            )
    for norm in norms:
        norm.two_views = True
    try:
        yield
    finally:
        for norm in norms:
            norm.two_views = False
