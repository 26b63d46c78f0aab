"""Proxy-AN (Peng et al., Neural Networks 195:108254), the paper's default base loss."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from couce.losses.base import ProxyLoss, initialise_proxies


class ProxyAN(ProxyLoss):
    """Proxies pull the images of their class, and images push the proxies of other classes away.

    With s the cosine and P⁺ the classes present in the batch::

        1/|P⁺| · Σ_{p∈P⁺} log(1 + Σ_{x of class p}   exp(−α·(s(x, p) − δ)))
        + 1/N  · Σ_x      log(1 + Σ_{p ≠ class of x} exp( α·(s(x, p) + δ)))

    Only the second term differs from Proxy-Anchor, which takes its mean over the proxies.
    """

    def __init__(self, num_classes: int, dim: int, alpha: float = 32.0, delta: float = 0.1) -> None:
        super().__init__(num_classes, dim)
        self.alpha = alpha
        self.delta = delta
        self.proxies = nn.Parameter(torch.empty(num_classes, dim))
        initialise_proxies(self.proxies)

    def compute_loss(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        cosines = self.compute_similarities(embeddings)  # (N, C)
        own = F.one_hot(labels, self.num_classes).bool()  # (N, C)
        pull = (-self.alpha * (cosines - self.delta)).masked_fill(~own, -torch.inf)
        push = (self.alpha * (cosines + self.delta)).masked_fill(own, -torch.inf)
        # A class that is absent from the batch contributes log(1 + 0) = 0.
        present = own.any(dim=0).sum()
        return _log1p_sum_exp(pull, dim=0).sum() / present + _log1p_sum_exp(push, dim=1).mean()

    def compute_similarities(self, embeddings: Tensor) -> Tensor:
        return F.normalize(embeddings, dim=1) @ F.normalize(self.proxies, dim=1).T


def _log1p_sum_exp(x: Tensor, dim: int) -> Tensor:
    """log(1 + Σ exp(x)) along ``dim``, without overflow: the 1 is the exponential of a zero."""
    zero = torch.zeros_like(x.narrow(dim, 0, 1))
    return torch.logsumexp(torch.cat([x, zero], dim=dim), dim=dim)
