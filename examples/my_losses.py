"""A base loss of one's own: a proxy softmax with a fixed temperature.

couce train demo --plugin examples/my_losses.py --loss my-softmax
couce train demo --plugin examples/my_losses.py --loss my-softmax --set loss_options.scale=8
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from couce.losses import LOSSES, ProxyLoss


class MySoftmax(ProxyLoss):
    """Cross-entropy over the cosines to all proxies, times ``scale``."""

    def __init__(self, num_classes: int, dim: int, scale: float = 16.0) -> None:
        super().__init__(num_classes, dim)
        self.scale = scale
        self.proxies = nn.Parameter(torch.empty(num_classes, dim))
        nn.init.kaiming_normal_(self.proxies, mode="fan_out")

    def compute_loss(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(self.scale * self.compute_similarities(embeddings), labels)

    def compute_similarities(self, embeddings: Tensor) -> Tensor:
        return F.normalize(embeddings, dim=1) @ F.normalize(self.proxies, dim=1).T  # (N, C)


LOSSES["my-softmax"] = MySoftmax
