"""The whole CouCE objective (paper, Eq. total_loss and Algorithm 1)."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from couce.losses.base import ProxyLoss
from couce.losses.precision import full_precision
from couce.method.covariance import covariance_penalty
from couce.method.invariance import invariance_loss
from couce.method.msrci import MSRCI, band_strengths
from couce.method.odba import ODBA
from couce.method.settings import MethodSettings


class Objective(NamedTuple):
    """The loss to minimise, and its unweighted parts by name (``dml``, ``orth``, ...)."""

    total: Tensor
    parts: dict[str, Tensor]


class CouCE(nn.Module):
    """``L_DML + λ1·L_orth + λ2·L_inv + λ3·L_cov`` with any proxy loss as ``L_DML``.

    One step of training::

        objective = CouCE(LOSSES["proxy-an"](num_classes=100, dim=512))
        embeddings, intervened = network.views(images, objective.intervention)
        objective(embeddings, labels, intervened).total.backward()

    In training mode, each call first updates the dictionary, as in Algorithm 1. In evaluation mode,
    nothing changes.

    Attributes:
        odba: the ODBA module; None if its weight is zero.
        intervention: the MSRCI module; None if its weight is zero. The second view is then never
            computed.
        mixed: whether the settings say ``supervise="mixed"``. There is then only the intervened
            view: ``network.views(images, intervention, mixed=True)``.
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
            self.intervention = MSRCI(gammas, msrci.scope, msrci.share)
        self.mixed = self.intervention is not None and settings.msrci.supervise == "mixed"

    @full_precision
    def forward(
        self, embeddings: Tensor, labels: Tensor, intervened: Tensor | None = None
    ) -> Objective:
        """The objective of one batch.

        Args:
            embeddings: the raw embeddings m (N, d) of the first view.
            labels: the labels (N,).
            intervened: the raw embeddings m̃ (N, d) of the second view, if there is one.
        """
        if (intervened is None) != (self.intervention is None or self.mixed):
            raise ValueError(
                "give intervened embeddings if there is a second view (.intervention is not None"
                " and .mixed is False), and otherwise None"
            )
        parts = self.parts(embeddings, labels, intervened)
        total = torch.stack([self.weights[name] * part for name, part in parts.items()]).sum()
        return Objective(total, {name: part.detach() for name, part in parts.items()})

    def parts(self, m: Tensor, labels: Tensor, m_tilde: Tensor | None) -> dict[str, Tensor]:
        """The unweighted terms of the objective by name. Gradients flow through them."""
        settings = self.settings
        views = (m, m_tilde)  # the two that the invariance loss compares
        orth: Tensor | None = None
        if self.odba is not None:
            if self.training:
                self.odba.update(m, labels)
            second = m_tilde if settings.odba.branches == "both" else None
            if settings.odba.mode == "soft":
                orth = self.odba.loss(m)
                if second is not None:
                    orth = orth + self.odba.loss(second)
            else:
                m = self.odba.project(m)
                # The invariance loss compares two projected views, or two unprojected ones.
                if second is not None:
                    views = (m, self.odba.project(second))

        base = self.loss(m, labels)
        if views[1] is not None and settings.msrci.supervise == "both":
            base = (base + self.loss(views[1], labels)) / 2
        parts = {"dml": base}
        if orth is not None:
            parts["orth"] = orth
        if views[1] is not None:
            parts["inv"] = self._invariance(views[0], views[1])
        if settings.covariance.weight > 0:
            parts["cov"] = covariance_penalty(_in_space(m, settings.covariance.space))
        return parts

    def _invariance(self, m: Tensor, m_tilde: Tensor) -> Tensor:
        msrci = self.settings.msrci
        if msrci.invariance == "l2":
            fixed = (m.detach(), m_tilde.detach()) if msrci.stop_gradient else (m, m_tilde)
            return (F.mse_loss(m, fixed[1]) + F.mse_loss(m_tilde, fixed[0])) / 2
        return invariance_loss(
            self.loss.similarities(m),
            self.loss.similarities(m_tilde),
            msrci.temperature,
            msrci.stop_gradient,
        )


def _in_space(m: Tensor, space: str) -> Tensor:
    if space == "raw":
        return m
    unit = F.normalize(m, dim=1)
    return unit * m.shape[1] ** 0.5 if space == "scaled" else unit
