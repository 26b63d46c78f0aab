"""SoftTriple (Qian et al., ICCV 2019), from pytorch-metric-learning."""

from pytorch_metric_learning.losses import SoftTripleLoss

from couce.losses.base import initialise_proxies
from couce.losses.wrapped import WrappedLoss


class SoftTriple(WrappedLoss):
    """Several centres a class; a class's similarity is the softmax-weighted one to its centres."""

    def __init__(self, num_classes: int, dim: int, centres: int = 10) -> None:
        wrapped = SoftTripleLoss(num_classes, dim, centers_per_class=centres)
        super().__init__(num_classes, dim, wrapped)
        initialise_proxies(wrapped.fc.t())  # it keeps the centres as columns
