import pytest
import torch

from couce.method import covariance_penalty


def test_equals_the_loops() -> None:
    x = torch.randn(9, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    rows = x.tolist()
    means = [sum(row[c] for row in rows) / 9 for c in range(5)]
    total = 0.0
    for i in range(5):
        for j in range(5):
            if i != j:
                cov = sum((row[i] - means[i]) * (row[j] - means[j]) for row in rows) / 8
                total += cov**2
    assert covariance_penalty(x).item() == pytest.approx(total / 5)


def test_passes_gradcheck() -> None:
    x = torch.randn(6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    assert torch.autograd.gradcheck(covariance_penalty, (x.requires_grad_(),))


def test_small_covariances_survive_large_variances_in_float32() -> None:
    signs = torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]])
    x = 100 * signs + torch.tensor([[1e-2, 0], [0, 0], [0, 0], [0, 0]])
    exact = covariance_penalty(x.double()).item()
    assert exact > 0
    assert covariance_penalty(x).item() == pytest.approx(exact, rel=1e-2)


def test_one_row_costs_nothing() -> None:
    x = torch.randn(1, 4, requires_grad=True)
    loss = covariance_penalty(x)
    loss.backward()
    assert loss == 0
    assert x.grad is not None
    assert torch.isfinite(x.grad).all()
