"""Covariance penalty (paper, Eq. cov; VICReg, Bardes et al. 2022)."""

import torch
from torch import Tensor

from couce.losses.precision import full_precision


@full_precision
def covariance_penalty(x: Tensor) -> Tensor:
    """``1/d · Σ_{i≠j} cov_ij²`` of the columns of ``x`` (N, d), the covariance taken with N − 1.

    The bare formula on what it is given: which space it is applied in is the objective's choice.
    A single row has no covariance and costs nothing.

    >>> covariance_penalty(torch.tensor([[1.0, 1.0], [-1.0, -1.0]]))  # cov = [[2, 2], [2, 2]]
    tensor(4.)
    """
    rows, dim = x.shape
    centred = x - x.mean(dim=0)
    cov = centred.T @ centred / max(rows - 1, 1)  # (d, d)
    # The diagonal is taken out before squaring: subtracting its sum afterwards would cancel the
    # small off-diagonal entries against the large variances.
    off_diagonal = cov - torch.diag(cov.diagonal())
    return off_diagonal.square().sum() / dim
