"""The interface of proxy losses: a scalar loss, and the cosine of every embedding to each class."""

from abc import ABC, abstractmethod

from torch import Tensor, nn

from couce.losses.precision import full_precision


class ProxyLoss(nn.Module, ABC):
    """A metric-learning loss with learnable class proxies.

    A subclass defines :meth:`compute_loss` and :meth:`compute_similarities`. Both get raw
    embeddings in float32 or float64, with autocast off.
    """

    def __init__(self, num_classes: int, dim: int) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.dim = dim

    @full_precision
    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """The scalar loss of raw embeddings (N, d) with labels (N,) from 0 to C − 1."""
        return self.compute_loss(embeddings, labels)

    @full_precision
    def similarities(self, embeddings: Tensor) -> Tensor:
        """The cosine (N, C) of raw embeddings (N, d) to each class."""
        return self.compute_similarities(embeddings)

    @abstractmethod
    def compute_loss(self, embeddings: Tensor, labels: Tensor) -> Tensor: ...

    @abstractmethod
    def compute_similarities(self, embeddings: Tensor) -> Tensor: ...


def initialise_proxies(proxies: Tensor) -> None:
    """Fills proxies (rows, d) with Kaiming-normal values, fan-out. All losses here start so."""
    nn.init.kaiming_normal_(proxies, mode="fan_out")
