"""MSRCI against a full complex FFT that treats amplitude and phase of each bin separately."""

import math

import pytest
import torch
from torch import Tensor

from couce.errors import CouceError
from couce.method import MSRCI, band_strengths
from couce.method.msrci import Scope

SHAPES = [(7, 7), (8, 8), (14, 14), (28, 28), (7, 14), (14, 8), (5, 1), (1, 1)]


def ring_by_loops(height: int, width: int, bands: int) -> Tensor:
    """The ring of each bin of the full spectrum (H, W), with equal widths from 0 to Nyquist."""
    ring = torch.zeros(height, width, dtype=torch.long)
    for i in range(height):
        for j in range(width):
            fy = (i if i <= height // 2 else i - height) / height
            fx = (j if j <= width // 2 else j - width) / width
            ring[i, j] = min(int(math.hypot(fy, fx) / (0.5 / bands) + 1e-9), bands - 1)
    return ring


def feature_map(height: int, width: int) -> Tensor:
    generator = torch.Generator().manual_seed(height * 100 + width)
    return torch.rand(3, 4, height, width, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize(("height", "width"), SHAPES)
def test_equals_amplitude_and_phase_taken_apart(height: int, width: int) -> None:
    x = feature_map(height, width)
    gammas = (0.2, 0.4, 0.8)
    actual = MSRCI(gammas)(x, torch.Generator().manual_seed(7))

    # One number is drawn for each sample and band.
    generator = torch.Generator().manual_seed(7)
    delta = 2 * torch.rand(3, 1, 3, generator=generator, dtype=torch.float64) - 1
    spectrum = torch.fft.fft2(x)
    amplitude, phase = spectrum.abs(), spectrum.angle()
    ring = ring_by_loops(height, width, 3)
    for n in range(3):
        for s in range(3):
            factor = 1 + gammas[s] * delta[n, 0, s]
            amplitude[n] = torch.where(ring == s, amplitude[n] * factor, amplitude[n])
    expected = torch.fft.ifft2(amplitude * torch.exp(1j * phase))

    assert actual.shape == x.shape
    assert expected.imag.abs().max() < 1e-12  # the intervened map is still real
    torch.testing.assert_close(actual, expected.real, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(("height", "width"), SHAPES)
def test_phase_is_kept_and_amplitude_scaled_by_one_factor_a_band(height: int, width: int) -> None:
    x = feature_map(height, width).float()
    before, after = torch.fft.fft2(x), torch.fft.fft2(MSRCI()(x))
    strong = before.abs() > 1e-3 * before.abs().max()  # the phase of weak bins is noise
    turned = torch.angle(after * before.conj())[strong]
    assert turned.norm() / before.angle()[strong].norm().clamp(min=1) < 1e-4
    gains = torch.where(strong, (after / before).real, torch.nan)  # (N, C, H, W)
    ring = ring_by_loops(height, width, 3)
    for s, gamma in enumerate((0.2, 0.4, 0.8)):
        band = gains[..., ring == s]
        for sample in band:
            values = sample[~sample.isnan()]
            if len(values):
                assert values.max() - values.min() < 1e-3  # the rounding of FFTs in float32
                assert abs(values.mean() - 1) <= gamma + 1e-3


@pytest.mark.parametrize(("height", "width"), SHAPES)
def test_zero_strength_gives_the_input_back(height: int, width: int) -> None:
    x = feature_map(height, width).float()
    torch.testing.assert_close(MSRCI((0.0, 0.0, 0.0))(x), x)


@pytest.mark.parametrize(
    ("scope", "distinct"),
    [("batch", (False, False)), ("sample", (True, False)), ("channel", (True, True))],
)
def test_scope_says_what_shares_a_draw(scope: str, distinct: tuple[bool, bool]) -> None:
    x = feature_map(8, 8)[:1, :1].expand(3, 4, 8, 8)
    y = MSRCI(scope=scope)(x)  # type: ignore[arg-type]
    samples_differ = not torch.allclose(y[0], y[1])
    channels_differ = not torch.allclose(y[:, 0], y[:, 1])
    assert (samples_differ, channels_differ) == distinct


def test_draws_are_uniform() -> None:
    """A constant map has only its innermost ring, which is scaled by 1 + 0.5·U(−1, 1)."""
    x = torch.ones(20_000, 1, 2, 2)
    factors = MSRCI((0.5,))(x, torch.Generator().manual_seed(0))[:, 0, 0, 0]
    assert 0.5 <= factors.min() < 0.501
    assert 1.499 < factors.max() <= 1.5
    assert factors.mean().item() == pytest.approx(1, abs=0.01)
    assert factors.var().item() == pytest.approx(0.25 / 3, rel=0.03)


def test_gradient_runs_through_the_intervention() -> None:
    x = feature_map(7, 6)[:2, :2].requires_grad_()
    msrci = MSRCI()

    def intervene(x: Tensor) -> Tensor:
        return msrci(x, torch.Generator().manual_seed(3))

    assert torch.autograd.gradcheck(intervene, (x,))


def test_seed_repeats_and_type_and_layout_are_kept() -> None:
    x = feature_map(14, 14).to(torch.bfloat16).to(memory_format=torch.channels_last)
    first, second = (MSRCI()(x, torch.Generator().manual_seed(1)) for _ in range(2))
    assert torch.equal(first, second)
    assert first.dtype == torch.bfloat16
    assert first.is_contiguous(memory_format=torch.channels_last)


def test_schedules_are_those_of_the_paper() -> None:
    assert band_strengths("uniform") == pytest.approx((0.8, 0.8, 0.8))
    assert band_strengths("linear") == pytest.approx((0.2667, 0.5333, 0.8), abs=1e-4)
    assert band_strengths("custom") == pytest.approx((0.2, 0.4, 0.8))
    assert band_strengths("exponential") == pytest.approx((0.05, 0.2, 0.8))
    assert band_strengths("linear", bands=5, strongest=0.5) == pytest.approx(
        (0.1, 0.2, 0.3, 0.4, 0.5)
    )
    with pytest.raises(CouceError, match="known: custom, uniform, linear, exponential"):
        band_strengths("cosine")


@pytest.mark.parametrize("gammas", [(), (1.0,), (-0.1, 0.5)])
def test_strengths_that_would_destroy_the_phase_are_refused(gammas: tuple[float, ...]) -> None:
    with pytest.raises(CouceError, match="gammas"):
        MSRCI(gammas)


@pytest.mark.parametrize("scope", ["sample", "channel", "batch"])
def test_a_share_of_the_samples_is_intervened_on(scope: Scope) -> None:
    x = torch.rand(400, 2, 4, 4, generator=torch.Generator().manual_seed(0))
    changed = MSRCI((0.5, 0.5), scope, share=0.25)(x, torch.Generator().manual_seed(1)) - x
    touched = changed.abs().amax(dim=(1, 2, 3)) > 1e-4
    assert 60 < int(touched.sum()) < 140  # 100, and more than four standard deviations around it
    assert changed[~touched].abs().max() < 1e-5


def test_the_whole_share_draws_as_without_one() -> None:
    x = feature_map(7, 7)
    whole, plain = MSRCI(share=1.0), MSRCI()
    generators = (torch.Generator().manual_seed(3) for _ in range(2))
    assert torch.equal(whole(x, next(generators)), plain(x, next(generators)))


@pytest.mark.parametrize("share", [0.0, -0.5, 1.5])
def test_a_share_that_is_none(share: float) -> None:
    with pytest.raises(CouceError, match="above 0 and at most 1"):
        MSRCI(share=share)
