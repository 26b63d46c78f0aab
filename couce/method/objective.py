"""The whole CouCE objective (paper, Eq. total_loss and Algorithm 1)."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from couce.losses.base import ProxyLoss
from couce.method.covariance import covariance_penalty
from couce.method.invariance import invariance_loss
from couce.method.msrci import MSRCI, band_strengths
from couce.method.odba import ODBA
from couce.method.settings import MethodSettings
from couce.precision import at_least_float32, no_autocast


class Objective(NamedTuple):
    """The total to minimise, and its parts by name before weighting (``dml``, ``orth``, ...)."""

    total: Tensor
    parts: dict[str, Tensor]


class CouCE(nn.Module):
    """``L_DML + λ1·L_orth + λ2·L_inv + λ3·L_cov`` on top of any proxy loss.

    One step of training::

        objective = CouCE(LOSSES["proxy-an"](num_classes=100, dim=512))
        if objective.intervention is None:
            embeddings, intervened = network(images), None
        else:
            embeddings, intervened = network.views(images, objective.intervention)
        objective(embeddings, labels, intervened).total.backward()

    ``intervention`` is the MSRCI module, or None when its weight is zero: the second view is then
    never computed. Likewise ``odba`` is None when its weight is zero. In training mode each call
    updates the dictionary first, as in Algorithm 1; in evaluation mode nothing changes.
    """

    def __init__(self, loss: ProxyLoss, settings: MethodSettings | None = None) -> None:
        super().__init__()
        self.settings = settings = settings or MethodSettings()
        self.loss = loss
        self.weights = {
            "dml": 1.0,
            "orth": settings.odba.weight,
            "inv": settings.msrci.weight,
            "cov": settings.covariance.weight,
        }
        self.odba: ODBA | None = None
        if settings.odba.weight > 0:
            self.odba = ODBA(
                loss.dim,
                settings.odba.capacity,
                settings.odba.momentum,
                settings.odba.threshold,
                settings.odba.inert,
                gating=settings.odba.gating,
                detach=settings.odba.detach,
                attention=settings.odba.attention,
            )
        self.intervention: MSRCI | None = None
        if settings.msrci.weight > 0:
            msrci = settings.msrci
            gammas = band_strengths(msrci.schedule, msrci.bands, msrci.strongest)
            self.intervention = MSRCI(gammas, msrci.scope)

    def forward(
        self, embeddings: Tensor, labels: Tensor, intervened: Tensor | None = None
    ) -> Objective:
        """Raw embeddings m (N, d) of a batch, its labels (N,), and m̃ (N, d) of the second view."""
        if (intervened is None) != (self.intervention is None):
            raise ValueError("give intervened embeddings exactly when .intervention is not None")
        with no_autocast(embeddings):
            m = at_least_float32(embeddings)
            m_tilde = None if intervened is None else at_least_float32(intervened)
            parts = self._parts(m, labels, m_tilde)
            total = torch.stack([self.weights[name] * part for name, part in parts.items()]).sum()
        return Objective(total, {name: part.detach() for name, part in parts.items()})

    def _parts(self, m: Tensor, labels: Tensor, m_tilde: Tensor | None) -> dict[str, Tensor]:
        settings = self.settings
        orth: Tensor | None = None
        if self.odba is not None:
            if self.training:
                self.odba.update(m, labels)
            both = settings.odba.branches == "both"
            if settings.odba.mode == "hard":
                m = self.odba.project(m)
                if both and m_tilde is not None:
                    m_tilde = self.odba.project(m_tilde)
            else:
                orth = self.odba.loss(m)
                if both and m_tilde is not None:
                    orth = orth + self.odba.loss(m_tilde)

        parts = {"dml": self.loss(m, labels)}
        if orth is not None:
            parts["orth"] = orth
        if m_tilde is not None and settings.msrci.invariance == "kl":
            parts["inv"] = invariance_loss(
                self.loss.similarities(m),
                self.loss.similarities(m_tilde),
                settings.msrci.temperature,
                settings.msrci.stop_gradient,
            )
        elif m_tilde is not None:
            apart = F.normalize(m, dim=1) - F.normalize(m_tilde, dim=1)
            parts["inv"] = apart.square().sum(dim=1).mean()
        if settings.covariance.weight > 0:
            parts["cov"] = covariance_penalty(_in_space(m, settings.covariance.space))
        return parts


def _in_space(m: Tensor, space: str) -> Tensor:
    if space == "raw":
        return m
    unit = F.normalize(m, dim=1)
    return unit * m.shape[1] ** 0.5 if space == "scaled" else unit
