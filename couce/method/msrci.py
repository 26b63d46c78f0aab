"""MSRCI: multi-scale randomised causal intervention (paper, Sec. 3.3, Eq. fft to ifft)."""

from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from couce.errors import CouceError, unknown_name
from couce.losses.precision import at_least_float32

Scope = Literal["sample", "channel", "batch"]

# Strength of band s = 1..S relative to the outermost one.
_SCHEDULES: dict[str, Callable[[int, int], float]] = {
    "custom": lambda s, count: 2.0 ** (s - count),
    "uniform": lambda _s, _count: 1.0,
    "linear": lambda s, count: s / count,
    "exponential": lambda s, count: 4.0 ** (s - count),
}


def band_strengths(
    schedule: str = "custom", bands: int = 3, strongest: float = 0.8
) -> tuple[float, ...]:
    """The paper's schedules γ_1..γ_S for any number of bands S and any γ_max.

    >>> band_strengths("custom")
    (0.2, 0.4, 0.8)
    >>> band_strengths("exponential")
    (0.05, 0.2, 0.8)
    """
    if schedule not in _SCHEDULES:
        raise unknown_name("schedule", schedule, _SCHEDULES)
    return tuple(strongest * _SCHEDULES[schedule](s, bands) for s in range(1, bands + 1))


class MSRCI(nn.Module):
    """Randomises the amplitude of a feature map by frequency band and keeps its phase.

    The bins of the 2-D spectrum are divided into S = len(gammas) concentric rings of equal width
    between 0 and the Nyquist frequency; the corners beyond it belong to the outermost ring. The
    bins of ring s are multiplied by ``1 + γ_s · Δ_s`` with ``Δ_s ~ U(−1, 1)``.

    That factor is real, positive and the same for a bin and its conjugate, so multiplying the
    spectrum by it scales the amplitude, keeps the phase exactly and gives a real map back:
    neither ``angle()`` nor ``exp()`` is needed, and half a spectrum (``rfft2``) is enough.

    ``scope`` says what shares a draw: the channels of a ``sample`` (default), nothing
    (``channel``: one draw for each channel of each sample), or the whole ``batch``. ``share`` is
    that of the samples which are intervened on, chosen at random; the others stay as they are.
    """

    def __init__(
        self,
        gammas: Sequence[float] = (0.2, 0.4, 0.8),
        scope: Scope = "sample",
        share: float = 1.0,
    ) -> None:
        super().__init__()
        if not gammas or not all(0 <= gamma < 1 for gamma in gammas):
            raise CouceError(
                f"msrci gammas must be one or more numbers from 0 to below 1, not {tuple(gammas)}:"
                " a factor of 0 or below would destroy the phase"
            )
        if scope not in ("sample", "channel", "batch"):
            raise unknown_name("msrci scope", scope, ("sample", "channel", "batch"))
        self.gammas = tuple(gammas)
        if not 0 < share <= 1:
            raise CouceError(
                f"the share that msrci intervenes on is above 0 and up to 1, not {share}"
            )
        self.scope = scope
        self.share = share
        # Ring of each bin, for each spatial size and device seen: derived, hence not a buffer.
        self._rings: dict[tuple[int, int, torch.device], Tensor] = {}

    def forward(self, feature_map: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """The intervened copy of ``feature_map`` (N, C, H, W), in its own type and layout."""
        samples, channels = feature_map.shape[:2]
        return self.apply_factors(feature_map, self.draw(samples, channels, generator))

    def draw(self, samples: int, channels: int, generator: torch.Generator | None = None) -> Tensor:
        """Random factors 1 + γ_s·Δ_s, one for each ring of what shares a draw: (N or 1, C or 1, S)."""
        shape = (
            1 if self.scope == "batch" else samples,
            channels if self.scope == "channel" else 1,
            len(self.gammas),
        )
        device = None if generator is None else generator.device
        delta = 2 * torch.rand(shape, generator=generator, dtype=torch.float64, device=device) - 1
        factors = 1 + delta * torch.tensor(self.gammas, dtype=torch.float64, device=device)
        if self.share == 1:
            return factors
        chosen = torch.rand(samples, generator=generator, device=device) < self.share
        return torch.where(chosen.view(-1, 1, 1), factors, 1.0)

    def apply_factors(self, feature_map: Tensor, factors: Tensor) -> Tensor:
        """The map with the rings of its spectrum multiplied by ``factors`` of :meth:`draw`."""
        dtype = torch.float64 if feature_map.dtype == torch.float64 else torch.float32
        gains = factors.to(feature_map.device, dtype)[..., self._ring_of_bins(feature_map)]
        with torch.autocast(feature_map.device.type, enabled=False):
            spectrum = torch.fft.rfft2(at_least_float32(feature_map))  # (N, C, H, W//2 + 1)
            intervened = torch.fft.irfft2(spectrum * gains, s=feature_map.shape[-2:])
        # FFTs come back in rows; the layers behind want the layout they were given (channels last).
        return torch.empty_like(feature_map).copy_(intervened)

    def _ring_of_bins(self, x: Tensor) -> Tensor:
        height, width = x.shape[-2:]
        key = (height, width, x.device)
        if key not in self._rings:
            self._rings[key] = ring_of_bins(height, width, len(self.gammas)).to(x.device)
        return self._rings[key]

    def extra_repr(self) -> str:
        return f"gammas={self.gammas}, scope={self.scope!r}, share={self.share}"


def ring_of_bins(height: int, width: int, rings: int) -> Tensor:
    """The ring, 0 to ``rings`` − 1, of each bin of ``rfft2``'s half spectrum (H, W//2 + 1).

    A bin (a, b) has the radial frequency r = √((a/H)² + (b/W)²), Nyquist being ½, and ring s
    starts at r = s / (2·rings). Compared as integers, so that no rounding moves a bin that lies
    exactly on a border.

    >>> ring_of_bins(4, 4, 2)
    tensor([[0, 1, 1],
            [1, 1, 1],
            [1, 1, 1],
            [1, 1, 1]])
    """
    a = torch.arange(height)
    a = torch.minimum(a, height - a).unsqueeze(1)  # bins above H/2 are negative frequencies
    b = torch.arange(width // 2 + 1).unsqueeze(0)
    radius = (2 * rings) ** 2 * ((a * width) ** 2 + (b * height) ** 2)  # (2·rings·r·H·W)²
    borders = (torch.arange(1, rings) * height * width).square()
    return (radius.unsqueeze(-1) >= borders).sum(dim=-1)
