"""A loss of pytorch-metric-learning as a :class:`ProxyLoss`."""

from typing import Any

from torch import Tensor

from couce.losses.base import ProxyLoss


class WrappedLoss(ProxyLoss):
    """Delegates to a loss module whose ``get_logits`` returns the cosines to the classes."""

    def __init__(self, num_classes: int, dim: int, wrapped: Any) -> None:
        super().__init__(num_classes, dim)
        self.wrapped = wrapped

    def compute_loss(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        return self.wrapped(embeddings, labels)

    def compute_similarities(self, embeddings: Tensor) -> Tensor:
        return self.wrapped.get_logits(embeddings)
