"""Proxy-NCA (Movshovitz-Attias et al., ICCV 2017), from pytorch-metric-learning."""

import torch.nn.functional as F
from pytorch_metric_learning.losses import ProxyNCALoss
from torch import Tensor

from couce.losses.base import initialise_proxies
from couce.losses.wrapped import WrappedLoss


class ProxyNCA(WrappedLoss):
    """``−log softmax_p(−scale · ‖u − p̂‖²)`` at the own class.

    A scale above 20 could underflow: ``exp(−4·scale)`` must stay a float32.
    """

    def __init__(self, num_classes: int, dim: int, scale: float = 1.0) -> None:
        wrapped = ProxyNCALoss(num_classes, dim, softmax_scale=scale)
        super().__init__(num_classes, dim, wrapped)
        initialise_proxies(wrapped.proxies)

    def compute_similarities(self, embeddings: Tensor) -> Tensor:
        # The loss works on squared distances, so its own logits are no cosines.
        return F.normalize(embeddings, dim=1) @ F.normalize(self.wrapped.proxies, dim=1).T
