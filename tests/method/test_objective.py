"""The whole objective: the sum of its parts, the effect of each switch, and parts switched off."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from couce.errors import CouceError
from couce.losses import LOSSES
from couce.method import (
    MSRCI,
    ODBA,
    CouCE,
    MethodSettings,
    Objective,
    covariance_penalty,
    invariance_loss,
)

LABELS = torch.arange(12) // 3


def views() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    m = 2 * torch.randn(12, 16, generator=generator)
    return m, m + 0.3 * torch.randn(12, 16, generator=generator)


def objective(loss: str = "proxy-an", **groups: Any) -> CouCE:
    torch.manual_seed(1)
    return CouCE(LOSSES[loss](num_classes=5, dim=16), MethodSettings.parse(groups))


def evaluate(couce: CouCE) -> Objective:
    m, m_tilde = views()
    return couce(m, LABELS, m_tilde if couce.intervention is not None else None)


@pytest.mark.parametrize("loss", LOSSES)
def test_total_is_the_weighted_sum_of_parts_computed_apart(loss: str) -> None:
    couce = objective(loss)
    m, m_tilde = views()
    total, parts = couce(m, LABELS, m_tilde)

    odba = ODBA(16)
    odba.update(m, LABELS)  # the batch enters the dictionary before the attention
    expected = {
        "dml": couce.loss(m, LABELS),
        "orth": odba.loss(m),
        "inv": invariance_loss(couce.loss.similarities(m), couce.loss.similarities(m_tilde)),
        "cov": covariance_penalty(4 * F.normalize(m, dim=1)),
    }
    assert list(parts) == list(expected)
    for name, part in expected.items():
        torch.testing.assert_close(parts[name], part.detach())
    weighted = (
        expected["dml"] + 0.05 * expected["orth"] + 0.1 * expected["inv"] + 0.04 * expected["cov"]
    )
    torch.testing.assert_close(total, weighted)


@pytest.mark.parametrize(
    ("group", "part", "forbidden"),
    [
        ("odba", "orth", "couce.method.odba.ODBA.attend"),
        ("msrci", "inv", "couce.method.objective.invariance_loss"),
        ("covariance", "cov", "couce.method.objective.covariance_penalty"),
    ],
)
def test_zero_weight_skips_the_computation(
    group: str, part: str, forbidden: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise AssertionError(f"{forbidden} was called")

    monkeypatch.setattr(forbidden, fail)
    with pytest.raises(AssertionError, match="was called"):
        evaluate(objective())
    off: Any = {group: {"weight": 0.0}}
    couce = objective(**off)
    assert part not in evaluate(couce).parts
    if group == "odba":
        assert couce.odba is None
        assert not list(couce.buffers())
    if group == "msrci":
        assert couce.intervention is None


def test_settings_reach_the_modules() -> None:
    couce = objective(
        odba={"capacity": 7, "momentum": 0.5, "threshold": 2.0, "inert": 0.1, "attention": "unit"},
        msrci={"schedule": "linear", "bands": 4, "strongest": 0.4, "scope": "channel"},
    )
    assert couce.odba is not None
    assert (couce.odba.capacity, couce.odba.momentum, couce.odba.threshold) == (7, 0.5, 2.0)
    assert (couce.odba.inert, couce.odba.attention) == (0.1, "unit")
    assert isinstance(couce.intervention, MSRCI)
    assert couce.intervention.gammas == pytest.approx((0.1, 0.2, 0.3, 0.4))
    assert couce.intervention.scope == "channel"


def test_hard_mode_projects_instead_of_adding_a_term() -> None:
    couce = objective(odba={"mode": "hard"})
    m, m_tilde = views()
    parts = couce(m, LABELS, m_tilde).parts
    odba = ODBA(16)
    odba.update(m, LABELS)
    projected = odba.project(m)
    assert "orth" not in parts
    torch.testing.assert_close(parts["dml"], couce.loss(projected, LABELS).detach())
    torch.testing.assert_close(parts["cov"], covariance_penalty(4 * F.normalize(projected, dim=1)))


def test_both_branches_add_up() -> None:
    couce = objective(odba={"branches": "both"})
    m, m_tilde = views()
    odba = ODBA(16)
    odba.update(m, LABELS)  # the intervened view must not enter the dictionary
    expected = odba.loss(m) + odba.loss(m_tilde)
    torch.testing.assert_close(couce(m, LABELS, m_tilde).parts["orth"], expected)


@pytest.mark.parametrize("branches", ["clean", "both"])
def test_hard_mode_compares_like_with_like(branches: str) -> None:
    """The invariance loss of two equal views is zero, with either setting of the projection."""
    m, _ = views()
    parts = objective(odba={"mode": "hard", "branches": branches})(m, LABELS, m.clone()).parts
    assert parts["inv"].item() == pytest.approx(0, abs=1e-6)


def test_l2_invariance_is_the_mean_squared_error_of_the_embeddings() -> None:
    m, m_tilde = views()
    squares = [
        (a - b) ** 2 for a, b in zip(m.flatten().tolist(), m_tilde.flatten().tolist(), strict=True)
    ]
    actual = evaluate(objective(msrci={"invariance": "l2"})).parts["inv"]
    assert actual.item() == pytest.approx(sum(squares) / len(squares))


@pytest.mark.parametrize("loss", LOSSES)
def test_supervising_both_views_is_the_mean_of_the_base_loss_on_each(loss: str) -> None:
    m, m_tilde = views()
    both = objective(loss, msrci={"supervise": "both"})
    apart = [objective(loss)(view, LABELS, m_tilde).parts["dml"].item() for view in (m, m_tilde)]
    assert abs(apart[0] - apart[1]) > 1e-3  # so the mean differs from both losses
    out = both(m, LABELS, m_tilde)
    assert out.parts["dml"].item() == pytest.approx(sum(apart) / 2)
    assert out.parts["inv"].item() == pytest.approx(evaluate(objective(loss)).parts["inv"].item())


@pytest.mark.parametrize("invariance", ["kl", "l2"])
def test_stop_gradient_changes_the_gradient_not_the_value(invariance: str) -> None:
    gradients, values = [], []
    for stop in (True, False):
        couce = objective(msrci={"stop_gradient": stop, "weight": 1.0, "invariance": invariance})
        m, m_tilde = (view.requires_grad_() for view in views())
        out = couce(m, LABELS, m_tilde)
        values.append(out.parts["inv"].item())
        gradients.append(torch.autograd.grad(out.total, m_tilde)[0])
    assert values[0] == pytest.approx(values[1])
    assert not torch.allclose(gradients[0], gradients[1])


@pytest.mark.parametrize(("space", "scale"), [("raw", None), ("unit", 1.0), ("scaled", 4.0)])
def test_covariance_space(space: str, scale: float | None) -> None:
    m, _ = views()
    x = m if scale is None else scale * F.normalize(m, dim=1)
    actual = evaluate(objective(covariance={"space": space})).parts["cov"]
    torch.testing.assert_close(actual, covariance_penalty(x))


def test_dictionary_grows_in_training_only() -> None:
    couce = objective()
    assert couce.odba is not None
    evaluate(couce)
    assert int(couce.odba.filled) == 12
    couce.eval()
    evaluate(couce)
    assert int(couce.odba.filled) == 12


def test_passes_gradcheck_in_both_views() -> None:
    couce = objective(msrci={"stop_gradient": False}, odba={"detach": False}).double()
    m, m_tilde = (view.double().requires_grad_() for view in views())
    couce(m, LABELS, m_tilde)
    couce.eval()  # keeps the dictionary fixed
    assert torch.autograd.gradcheck(lambda a, b: couce(a, LABELS, b).total, (m, m_tilde))


def test_half_precision_embeddings_under_autocast_are_computed_in_float32() -> None:
    m, m_tilde = (view.bfloat16() for view in views())
    expected = objective()(m.float(), LABELS, m_tilde.float()).total
    with torch.autocast("cpu", dtype=torch.bfloat16):
        actual = objective()(m, LABELS, intervened=m_tilde).total
    assert actual.dtype == torch.float32
    torch.testing.assert_close(actual, expected)


def test_a_missing_or_needless_second_view_is_an_error() -> None:
    m, m_tilde = views()
    with pytest.raises(ValueError, match="intervened"):
        objective()(m, LABELS)
    with pytest.raises(ValueError, match="intervened"):
        objective(msrci={"weight": 0.0})(m, LABELS, m_tilde)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"odba": {"capasity": 3}},
            r"'odba.capasity' is unknown \(did you mean 'odba.capacity'\?\)",
        ),
        ({"obda": {}}, r"'obda' is unknown \(did you mean 'odba'\?\)"),
        ({"odba": {"threshold": float("nan")}}, "'odba.threshold'.*finite"),
        ({"odba": {"branches": "both"}, "msrci": {"weight": 0}}, "branches = 'both' needs"),
        ([1], "valid dictionary"),
        ({"msrci": {"strongest": 1.0}}, "'msrci.strongest'.*less than 1.*got 1.0"),
        ({"odba": {"mode": "medium"}}, "'odba.mode'.*'soft' or 'hard'"),
        ({"covariance": {"weight": -1}}, "'covariance.weight'"),
    ],
)
def test_wrong_settings_name_the_key(values: dict[str, Any], message: str) -> None:
    with pytest.raises(CouceError, match=message):
        MethodSettings.parse(values)


def test_mixed_has_one_view_and_nothing_to_hold_invariant() -> None:
    mixed = objective(msrci={"supervise": "mixed", "share": 0.5}, covariance={"weight": 0})
    assert mixed.mixed
    assert mixed.intervention is not None
    assert mixed.intervention.share == 0.5
    m, m_tilde = views()
    total, parts = mixed(m, LABELS)
    odba = ODBA(16)
    odba.update(m, LABELS)
    assert list(parts) == ["dml", "orth"]
    torch.testing.assert_close(total, mixed.loss(m, LABELS) + 0.05 * odba.loss(m))
    with pytest.raises(ValueError, match="mixed"):
        mixed(m, LABELS, m_tilde)
    with pytest.raises(CouceError, match="second view"):
        objective(msrci={"supervise": "mixed"}, odba={"branches": "both"})


def test_without_msrci_nothing_is_mixed() -> None:
    assert not objective(msrci={"supervise": "mixed", "weight": 0}).mixed
