"""The settings of the method: the paper's defaults, and a switch for each of its ablations.

A ``weight`` of zero takes a part out of the computation altogether.
"""

from typing import Literal, Self

from pydantic import Field, model_validator

from couce.config import Settings


class ODBASettings(Settings):
    weight: float = Field(0.05, ge=0)  # λ1
    capacity: int = Field(2048, ge=1)  # K
    momentum: float = Field(0.999, ge=0, le=1)  # μ
    threshold: float = 1.0  # τ_g
    inert: float = Field(1e-4, ge=0)  # δ
    gating: bool = True
    detach: bool = True
    attention: Literal["raw", "unit"] = "raw"
    # hard: the losses see m − proj_z m instead of an added L_orth (the weight is then only a switch).
    mode: Literal["soft", "hard"] = "soft"
    # both: the intervened embedding is held orthogonal too, and the two terms add up.
    branches: Literal["clean", "both"] = "clean"


class MSRCISettings(Settings):
    weight: float = Field(0.1, ge=0)  # λ2
    schedule: Literal["custom", "uniform", "linear", "exponential"] = "custom"
    bands: int = Field(3, ge=1)  # S
    strongest: float = Field(0.8, ge=0, lt=1)  # γ_max
    scope: Literal["sample", "channel", "batch"] = "sample"
    temperature: float = Field(0.1, gt=0)  # τ
    # kl: on proxy similarities. l2: mean squared error between the embeddings.
    invariance: Literal["kl", "l2"] = "kl"
    stop_gradient: bool = True
    # What the base loss sees. both: its mean over the clean and the intervened embeddings. mixed: one view,
    # in which a share of the images is intervened on; there is no second one, nothing to hold invariant.
    supervise: Literal["clean", "both", "mixed"] = "clean"
    share: float = Field(1.0, gt=0, le=1)  # of a batch's images that are intervened on


class CovarianceSettings(Settings):
    weight: float = Field(0.04, ge=0)  # λ3
    # raw: m. unit: u = m/‖m‖. scaled: √d·u, whose channels vary by about 1, as VICReg's do.
    space: Literal["scaled", "unit", "raw"] = "scaled"


class MethodSettings(Settings):
    odba: ODBASettings = ODBASettings()
    msrci: MSRCISettings = MSRCISettings()
    covariance: CovarianceSettings = CovarianceSettings()

    @model_validator(mode="after")
    def _second_view(self) -> Self:
        alone = self.msrci.weight == 0 or self.msrci.supervise == "mixed"
        if self.odba.branches == "both" and alone:
            raise ValueError(
                "odba.branches = 'both' needs the second view, which there is none of if msrci.weight is 0"
                " or msrci.supervise 'mixed'"
            )
        return self
