"""The settings of the method: the paper's defaults, and a switch for each of its ablations.

A part with a ``weight`` of zero is not computed at all.
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
    # hard: the losses get m − proj_z m, and L_orth is not added. The weight is then only a switch.
    mode: Literal["soft", "hard"] = "soft"
    # both: L_orth is the sum of the terms of the clean and of the intervened embeddings.
    branches: Literal["clean", "both"] = "clean"


class MSRCISettings(Settings):
    weight: float = Field(0.1, ge=0)  # λ2
    schedule: Literal["custom", "uniform", "linear", "exponential"] = "custom"
    bands: int = Field(3, ge=1)  # S
    strongest: float = Field(0.8, ge=0, lt=1)  # γ_max
    scope: Literal["sample", "channel", "batch"] = "sample"
    temperature: float = Field(0.1, gt=0)  # τ
    # kl: KL divergence of the proxy similarities. l2: mean squared error between the embeddings.
    invariance: Literal["kl", "l2"] = "kl"
    stop_gradient: bool = True
    # The embeddings that the base loss gets. both: the mean of the losses of the clean and of the
    # intervened embeddings. mixed: one view only, in which a share of the images is intervened on;
    # without a second view there is no invariance loss.
    supervise: Literal["clean", "both", "mixed"] = "clean"
    share: float = Field(1.0, gt=0, le=1)  # the share of a batch that is intervened on


class CovarianceSettings(Settings):
    weight: float = Field(0.04, ge=0)  # λ3
    # raw: m. unit: u = m/‖m‖. scaled: √d·u, whose channels have a variance of about 1, as in
    # VICReg.
    space: Literal["scaled", "unit", "raw"] = "scaled"


class BackgroundSettings(Settings):
    # The share of a batch whose objects are put before the background of another class.
    share: float = Field(0.0, ge=0, le=1)
    # found: objects are found by the backbone's starting weights and by colours, without labels.
    # Or a folder of object masks, CLASS/NAME.png.
    objects: str = "found"


class MethodSettings(Settings):
    odba: ODBASettings = ODBASettings()
    msrci: MSRCISettings = MSRCISettings()
    covariance: CovarianceSettings = CovarianceSettings()
    backgrounds: BackgroundSettings = BackgroundSettings()

    @model_validator(mode="after")
    def _second_view(self) -> Self:
        alone = self.msrci.weight == 0 or self.msrci.supervise == "mixed"
        if self.odba.branches == "both" and alone:
            raise ValueError(
                "odba.branches = 'both' needs a second view, and there is none: set msrci.weight"
                " above 0 and msrci.supervise to 'clean' or 'both'"
            )
        return self
