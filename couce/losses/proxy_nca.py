"""Proxy-NCA (Movshovitz-Attias et al., ICCV 2017), as a softmax over all proxies."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from couce.losses.base import ProxyLoss, initialise_proxies


class ProxyNCA(ProxyLoss):
    """``−log softmax_p(−scale · ‖u − p̂‖²)`` at the proxy of the image's class.

    This is the ProxyNCALoss of pytorch-metric-learning. That one takes the logarithm of a softmax,
    which underflows for a scale above 20, and its gradient is then NaN. The cross-entropy used here
    does not underflow.
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
