import math

import pytest
import torch
from torch import Tensor

from couce.method import invariance_loss


def softmax(row: list[float], temperature: float) -> list[float]:
    exponents = [math.exp(value / temperature) for value in row]
    return [e / sum(exponents) for e in exponents]


def kl(p: list[float], q: list[float]) -> float:
    return sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))


def cosines(seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return 2 * torch.rand(5, 7, generator=generator, dtype=torch.float64) - 1


@pytest.mark.parametrize("temperature", [0.1, 0.5])
def test_value_equals_the_loops(temperature: float) -> None:
    s, t = cosines(0), cosines(1)
    total = 0.0
    for a, b in zip(s.tolist(), t.tolist(), strict=True):
        p, q = softmax(a, temperature), softmax(b, temperature)
        total += kl(p, q) + kl(q, p)
    assert invariance_loss(s, t, temperature).item() == pytest.approx(total / (2 * 5))
    # The stop-gradient changes gradients, not the value.
    loose = invariance_loss(s, t, temperature, stop_gradient=False)
    assert loose.item() == pytest.approx(total / (2 * 5))


def test_gradient_of_both_branches_equals_finite_differences_with_the_other_fixed() -> None:
    """∂/∂s is that of KL(p ‖ p̃) with p̃ fixed, and ∂/∂s̃ is that of KL(p̃ ‖ p) with p fixed."""
    s, t = cosines(2).requires_grad_(), cosines(3).requires_grad_()
    grad_s, grad_t = torch.autograd.grad(invariance_loss(s, t), (s, t))
    for moved, fixed, gradient in ((s, t, grad_s), (t, s, grad_t)):
        for i in range(5):
            q = softmax(fixed[i].tolist(), 0.1)
            for j in range(7):
                sides = []
                for step in (1e-6, -1e-6):
                    row = moved[i].tolist()
                    row[j] += step
                    sides.append(kl(softmax(row, 0.1), q) / (2 * 5))
                expected = (sides[0] - sides[1]) / 2e-6
                assert gradient[i, j].item() == pytest.approx(expected, rel=1e-4, abs=1e-8)


def test_passes_gradcheck_without_stop_gradient() -> None:
    s, t = cosines(4).requires_grad_(), cosines(5).requires_grad_()
    assert torch.autograd.gradcheck(
        lambda a, b: invariance_loss(a, b, 0.3, stop_gradient=False), (s, t)
    )


def test_equal_views_cost_nothing_and_opposite_ones_stay_finite() -> None:
    s = cosines(6)
    assert invariance_loss(s, s).item() == pytest.approx(0, abs=1e-15)
    one = torch.tensor([[1.0, -1.0]])
    loss = invariance_loss(one.requires_grad_(), -one.detach(), temperature=0.001)
    assert loss.item() == pytest.approx(2000)
    (gradient,) = torch.autograd.grad(loss, one)
    assert torch.isfinite(gradient).all()
