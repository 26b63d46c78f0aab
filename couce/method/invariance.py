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
    """``½ · mean[KL(p ‖ sg(p̃)) + KL(p̃ ‖ sg(p))]`` of two (N, C) tables of cosines.

    ``p`` is the softmax over classes of ``similarities / temperature``. It is computed from
    log-probabilities throughout, so that a vanishing probability gives a finite number.
    """
    log_p = F.log_softmax(similarities / temperature, dim=1)  # (N, C)
    log_q = F.log_softmax(intervened_similarities / temperature, dim=1)  # (N, C)
    fixed_p, fixed_q = (log_p.detach(), log_q.detach()) if stop_gradient else (log_p, log_q)
    return (_kl(log_p, fixed_q) + _kl(log_q, fixed_p)) / 2


def _kl(log_p: Tensor, log_q: Tensor) -> Tensor:
    """Mean over the rows of KL(p ‖ q)."""
    return (log_p.exp() * (log_p - log_q)).sum(dim=1).mean()
