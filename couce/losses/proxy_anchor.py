"""Proxy-Anchor (Kim et al., CVPR 2020), from pytorch-metric-learning."""

from pytorch_metric_learning.losses import ProxyAnchorLoss

from couce.losses.base import initialise_proxies
from couce.losses.wrapped import WrappedLoss


class ProxyAnchor(WrappedLoss):
    """Like Proxy-AN, but with ``1/C · Σ_p log(1 + Σ_{x not of p} exp(α·(s(x, p) + δ)))`` second."""

    def __init__(self, num_classes: int, dim: int, alpha: float = 32.0, delta: float = 0.1) -> None:
        wrapped = ProxyAnchorLoss(num_classes, dim, margin=delta, alpha=alpha)
        super().__init__(num_classes, dim, wrapped)
        initialise_proxies(wrapped.proxies)
