"""SoftTriple (Qian et al., ICCV 2019), from pytorch-metric-learning."""

from pytorch_metric_learning.losses import SoftTripleLoss

from couce.losses.base import initialise_proxies
from couce.losses.wrapped import WrappedLoss


class SoftTriple(WrappedLoss):
    """Several centres a class; a class's similarity is the softmax-weighted one to its centres.

    ``scale`` is the paper's λ, ``temperature`` its γ, ``margin`` its δ.
    """

    def __init__(
        self,
        num_classes: int,
        dim: int,
        centres: int = 10,
        scale: float = 20.0,
        temperature: float = 0.1,
        margin: float = 0.01,
    ) -> None:
        wrapped = SoftTripleLoss(num_classes, dim, centres, scale, temperature, margin)
        super().__init__(num_classes, dim, wrapped)
        initialise_proxies(wrapped.fc.t())  # it keeps the centres as columns
