"""SoftTriple (Qian et al., ICCV 2019), from pytorch-metric-learning."""

from pytorch_metric_learning.losses import SoftTripleLoss

from couce.losses.base import initialise_proxies
from couce.losses.wrapped import WrappedLoss


class SoftTriple(WrappedLoss):
    """Each class has several centres. Its similarity is the softmax-weighted one to these centres.

    In the paper, ``scale`` is λ, ``temperature`` is γ and ``margin`` is δ.
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
        initialise_proxies(wrapped.fc.t())  # the wrapped loss stores the centres as columns
