"""Invariance of proxy similarities under intervention (paper, Eq. proxy_dist and inv)."""

import torch.nn.functional as F
from torch import Tensor

from couce.losses.precision import full_precision


@full_precision
def invariance_loss(
    similarities: Tensor,
    intervened_similarities: Tensor,
    temperature: float = 0.1,
    stop_gradient: bool = True,
) -> Tensor:
    """``½ · mean[KL(p ‖ sg(p̃)) + KL(p̃ ‖ sg(p))]`` for two (N, C) arrays of cosines.

    ``p`` is the softmax of ``similarities / temperature`` over the classes, and ``p̃`` that of the
    intervened similarities. Everything is computed from log-probabilities, so the loss stays
    finite when a probability underflows to zero.
    """
    log_p = F.log_softmax(similarities / temperature, dim=1)  # (N, C)
    log_q = F.log_softmax(intervened_similarities / temperature, dim=1)  # (N, C)
    fixed_p, fixed_q = (log_p.detach(), log_q.detach()) if stop_gradient else (log_p, log_q)
    return (_kl(log_p, fixed_q) + _kl(log_q, fixed_p)) / 2


def _kl(log_p: Tensor, log_q: Tensor) -> Tensor:
    """The mean of KL(p ‖ q) over the rows."""
    return (log_p.exp() * (log_p - log_q)).sum(dim=1).mean()
