"""Covariance penalty (paper, Eq. cov; VICReg, Bardes et al. 2022)."""

import torch
from torch import Tensor

from couce.losses.precision import full_precision


@full_precision
def covariance_penalty(x: Tensor) -> Tensor:
    """``1/d · Σ_{i≠j} cov_ij²`` for the columns of ``x`` (N, d). The covariance divides by N − 1.

    The objective chooses the space of ``x`` (raw, unit or scaled embeddings). A single row has no
    covariance, so its penalty is zero.

    >>> covariance_penalty(torch.tensor([[1.0, 1.0], [-1.0, -1.0]]))  # cov = [[2, 2], [2, 2]]
    tensor(4.)
    """
    rows, dim = x.shape
    centred = x - x.mean(dim=0)
    cov = centred.T @ centred / max(rows - 1, 1)  # (d, d)
    # The diagonal is removed before squaring. If its sum were subtracted afterwards, rounding of
    # the large variances would swamp the small off-diagonal entries.
    off_diagonal = cov - torch.diag(cov.diagonal())
    return off_diagonal.square().sum() / dim
