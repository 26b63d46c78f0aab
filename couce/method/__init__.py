"""The CouCE method: ODBA, MSRCI, the covariance penalty, backgrounds, and the whole objective."""

from couce.method.covariance import covariance_penalty
from couce.method.invariance import invariance_loss
from couce.method.msrci import MSRCI, band_strengths
from couce.method.objective import CouCE, Objective
from couce.method.odba import ODBA
from couce.method.settings import (
    BackgroundSettings,
    CovarianceSettings,
    MethodSettings,
    MSRCISettings,
    ODBASettings,
)

__all__ = [
    "MSRCI",
    "ODBA",
    "BackgroundSettings",
    "CouCE",
    "CovarianceSettings",
    "MSRCISettings",
    "MethodSettings",
    "ODBASettings",
    "Objective",
    "band_strengths",
    "covariance_penalty",
    "invariance_loss",
]
