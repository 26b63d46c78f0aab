"""Proxy-NCA (Movshovitz-Attias et al., ICCV 2017), in the form that is a softmax over all proxies."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from couce.losses.base import ProxyLoss, initialise_proxies


class ProxyNCA(ProxyLoss):
    """``−log softmax_p(−scale · ‖u − p̂‖²)`` at the own class.

    The same as pytorch-metric-learning's ProxyNCALoss, which takes the logarithm of a softmax: there
    a scale above 20 underflows and its gradient is NaN. As a cross-entropy it never does.
    """

    def __init__(self, num_classes: int, dim: int, scale: float = 1.0) -> None:
        super().__init__(num_classes, dim)
        self.scale = scale
        self.proxies = nn.Parameter(torch.empty(num_classes, dim))
        initialise_proxies(self.proxies)

    def compute_loss(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        distances = 2 - 2 * self.compute_similarities(embeddings)  # (N, C), squared
        return F.cross_entropy(-self.scale * distances, labels)

    def compute_similarities(self, embeddings: Tensor) -> Tensor:
        return F.normalize(embeddings, dim=1) @ F.normalize(self.proxies, dim=1).T
