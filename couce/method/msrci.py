"""MSRCI: multi-scale randomised causal intervention (paper, Sec. 3.3, Eq. fft to ifft)."""

from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from couce.errors import CouceError, unknown_name
from couce.losses.precision import at_least_float32

Scope = Literal["sample", "channel", "batch"]

# The strength of band s = 1..S relative to that of the outermost band.
_SCHEDULES: dict[str, Callable[[int, int], float]] = {
    "custom": lambda s, count: 2.0 ** (s - count),
    "uniform": lambda _s, _count: 1.0,
    "linear": lambda s, count: s / count,
    "exponential": lambda s, count: 4.0 ** (s - count),
}


def band_strengths(
    schedule: str = "custom", bands: int = 3, strongest: float = 0.8
) -> tuple[float, ...]:
    """The strengths γ_1..γ_S of one of the paper's schedules, for S bands and any γ_max.

    >>> band_strengths("custom")
    (0.2, 0.4, 0.8)
    >>> band_strengths("exponential")
    (0.05, 0.2, 0.8)
    """
    if schedule not in _SCHEDULES:
        raise unknown_name("schedule", schedule, _SCHEDULES)
    return tuple(strongest * _SCHEDULES[schedule](s, bands) for s in range(1, bands + 1))


class MSRCI(nn.Module):
    """Randomises the amplitude of a feature map in each frequency band and keeps its phase.

    The bins of the 2-D spectrum are divided into S = len(gammas) concentric rings of equal width
    between 0 and the Nyquist frequency. The corners beyond it belong to the outermost ring. The
    bins of ring s are multiplied by ``1 + γ_s · Δ_s`` with ``Δ_s ~ U(−1, 1)``.

    This factor is real, positive and the same for a bin and its conjugate. So the multiplication
    scales the amplitude, keeps the phase exactly, and the inverse transform is real. Neither
    ``angle()`` nor ``exp()`` is needed, and half of the spectrum (``rfft2``) is enough.

    Args:
        gammas: the strengths γ_s of the rings, from the innermost to the outermost.
        scope: which maps share a random draw: the channels of a ``sample`` (default), none
            (``channel``: one draw for each channel of each sample), or the whole ``batch``.
        share: the share of the samples that is intervened on. These samples are chosen at random,
            and the others stay unchanged.
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
                f"the share that msrci intervenes on must be above 0 and at most 1, not {share}"
            )
        self.scope = scope
        self.share = share
        # The ring of each bin, for each spatial size and device so far. It is no buffer, because
        # it can be computed again.
        self._rings: dict[tuple[int, int, torch.device], Tensor] = {}

    def forward(self, feature_map: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """The intervened copy of ``feature_map`` (N, C, H, W), with the same type and layout."""
        samples, channels = feature_map.shape[:2]
        return self.apply_factors(feature_map, self.draw(samples, channels, generator))

    def draw(self, samples: int, channels: int, generator: torch.Generator | None = None) -> Tensor:
        """Draws the factors 1 + γ_s·Δ_s: (N or 1, C or 1, S), with 1 where a draw is shared."""
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
        """The map with the rings of its spectrum multiplied by the ``factors`` of :meth:`draw`."""
        dtype = torch.float64 if feature_map.dtype == torch.float64 else torch.float32
        gains = factors.to(feature_map.device, dtype)[..., self._ring_of_bins(feature_map)]
        with torch.autocast(feature_map.device.type, enabled=False):
            spectrum = torch.fft.rfft2(at_least_float32(feature_map))  # (N, C, H, W//2 + 1)
            intervened = torch.fft.irfft2(spectrum * gains, s=feature_map.shape[-2:])
        # The inverse FFT returns a contiguous map. The next layers need the memory layout of the
        # input, which may be channels last.
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

    A bin (a, b) has the radial frequency r = √((a/H)² + (b/W)²), and the Nyquist frequency is ½.
    Ring s starts at r = s / (2·rings). The comparison uses integers, so rounding cannot move a bin
    that lies exactly on a border.

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
