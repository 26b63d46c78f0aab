"""The losses against their formulas in plain loops, and tests that every proxy loss must pass."""

import math

import pytest
import torch
import torch.nn.functional as F
from pytorch_metric_learning.losses import ProxyNCALoss
from torch import Tensor

from couce.errors import CouceError
from couce.losses import LOSSES, ProxyAN, ProxyAnchor, ProxyLoss, ProxyNCA, SoftTriple, build_loss

ALPHA, DELTA = 32.0, 0.1


def cosine(a: list[float], b: list[float]) -> float:
    dot = sum(x * y for x, y in zip(a, b, strict=True))
    return dot / math.sqrt(sum(x * x for x in a)) / math.sqrt(sum(y * y for y in b))


def data() -> tuple[Tensor, Tensor]:
    """Nine embeddings of the classes 0, 1, 2 and 4. Two of the six classes are absent."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(9, 8, generator=generator, dtype=torch.float64)
    return x, torch.tensor([0, 0, 0, 1, 1, 2, 4, 4, 4])


def pull(x: Tensor, labels: Tensor, proxies: Tensor) -> float:
    """The first term of both Proxy-AN and Proxy-Anchor."""
    present = set(labels.tolist())
    total = 0.0
    for p in present:
        inner = sum(
            math.exp(-ALPHA * (cosine(row, proxies[p].tolist()) - DELTA))
            for row, label in zip(x.tolist(), labels.tolist(), strict=True)
            if label == p
        )
        total += math.log(1 + inner)
    return total / len(present)


def test_proxy_an_equals_the_loops() -> None:
    x, labels = data()
    loss = ProxyAN(6, 8).double()
    push = 0.0
    for row, label in zip(x.tolist(), labels.tolist(), strict=True):
        inner = sum(
            math.exp(ALPHA * (cosine(row, loss.proxies[p].tolist()) + DELTA))
            for p in range(6)
            if p != label
        )
        push += math.log(1 + inner)
    expected = pull(x, labels, loss.proxies) + push / len(x)
    assert loss(x, labels).item() == pytest.approx(expected)


def test_proxy_anchor_equals_the_loops() -> None:
    x, labels = data()
    loss = ProxyAnchor(6, 8).double()
    proxies = next(loss.parameters())
    push = 0.0
    for p in range(6):
        inner = sum(
            math.exp(ALPHA * (cosine(row, proxies[p].tolist()) + DELTA))
            for row, label in zip(x.tolist(), labels.tolist(), strict=True)
            if label != p
        )
        push += math.log(1 + inner)
    assert loss(x, labels).item() == pytest.approx(pull(x, labels, proxies) + push / 6)


def test_proxy_nca_equals_the_loops() -> None:
    x, labels = data()
    loss = ProxyNCA(6, 8, scale=3.0).double()
    total = 0.0
    for row, label in zip(x.tolist(), labels.tolist(), strict=True):
        # ‖u − p̂‖² = 2 − 2·cosine
        logits = [-3 * (2 - 2 * cosine(row, p)) for p in loss.proxies.tolist()]
        total -= logits[label] - math.log(sum(math.exp(logit) for logit in logits))
    assert loss(x, labels).item() == pytest.approx(total / len(x))


@pytest.mark.parametrize("scale", [1.0, 9.0])
def test_proxy_nca_equals_pytorch_metric_learning(scale: float) -> None:
    x, labels = data()
    loss, reference = ProxyNCA(6, 8, scale).double(), ProxyNCALoss(6, 8, softmax_scale=scale)
    reference.proxies.data = loss.proxies.data.clone()
    torch.testing.assert_close(loss(x, labels), reference(x, labels))


def test_soft_triple_equals_the_loops() -> None:
    x, labels = data()
    loss = SoftTriple(6, 8, centres=3).double()
    centres = loss.wrapped.fc.t().reshape(6, 3, 8).tolist()
    total = 0.0
    for i, (row, label) in enumerate(zip(x.tolist(), labels.tolist(), strict=True)):
        similarities = []
        for c in range(6):
            cosines = [cosine(row, centre) for centre in centres[c]]
            weights = [math.exp(s / 0.1) for s in cosines]
            weighted = sum(w * s for w, s in zip(weights, cosines, strict=True)) / sum(weights)
            similarities.append(weighted)
        torch.testing.assert_close(
            loss.similarities(x)[i], torch.tensor(similarities, dtype=torch.float64)
        )
        logits = [20 * (s - 0.01 * (c == label)) for c, s in enumerate(similarities)]
        total -= logits[label] - math.log(sum(math.exp(logit) for logit in logits))
    assert loss(x, labels).item() == pytest.approx(total / len(x))


@pytest.mark.parametrize("name", LOSSES)
class TestEveryLoss:
    def build(self, name: str, **options: float) -> ProxyLoss:
        torch.manual_seed(0)
        return build_loss(name, num_classes=6, dim=8, **options)

    def test_similarities_are_cosines_whatever_the_length(self, name: str) -> None:
        loss = self.build(name)
        x = torch.randn(5, 8)
        similarities = loss.similarities(x)
        assert similarities.shape == (5, 6)
        assert similarities.abs().max() <= 1 + 1e-6
        torch.testing.assert_close(loss.similarities(50 * x), similarities)

    def test_passes_gradcheck_in_embeddings_and_proxies(self, name: str) -> None:
        loss = self.build(name).double()
        x, labels = data()
        (proxies,) = loss.parameters()

        def of(x: Tensor, values: Tensor) -> Tensor:
            with torch.no_grad():
                proxies.copy_(values)
            return loss(x, labels)

        assert torch.autograd.gradcheck(lambda x: loss(x, labels), (x.requires_grad_(),))
        value = proxies.detach().clone()
        (gradient,) = torch.autograd.grad(loss(x, labels), proxies)
        for index in [(0, 0), (1, 5), (5, 2)]:
            step = torch.zeros_like(value)
            step[index] = 1e-6
            expected = (of(x, value + step) - of(x, value - step)) / 2e-6
            assert gradient[index].item() == pytest.approx(expected.item(), rel=1e-4, abs=1e-8)

    @pytest.mark.parametrize("sign", [1.0, -1.0])
    def test_the_worst_embeddings_stay_finite(self, name: str, sign: float) -> None:
        loss = self.build(name, **({"scale": 64.0} if name in ("proxy-nca", "soft-triple") else {}))
        labels = torch.arange(6).repeat(20)
        (proxies,) = loss.parameters()
        with torch.no_grad():
            proxies.copy_(torch.sign(proxies) * 1e3)
        rows = proxies if name != "soft-triple" else proxies.t()[::10]
        x = (sign * rows.detach().repeat(20, 1)).requires_grad_()
        value = loss(x, labels)
        value.backward()
        assert torch.isfinite(value)
        assert x.grad is not None
        assert torch.isfinite(x.grad).all()

    def test_computes_in_full_precision_under_autocast(self, name: str) -> None:
        loss = self.build(name)
        x, labels = torch.randn(9, 8), data()[1]
        exact, cosines = loss(x.bfloat16().float(), labels), loss.similarities(x.bfloat16().float())
        with torch.autocast("cpu", dtype=torch.bfloat16):
            actual, similarities = loss(x.bfloat16(), labels), loss.similarities(x.bfloat16())
        assert actual.dtype == similarities.dtype == torch.float32
        torch.testing.assert_close(actual, exact)
        torch.testing.assert_close(similarities, cosines)
        assert all(p.dtype == torch.float32 for p in loss.parameters())

    def test_training_pulls_embeddings_to_their_class(self, name: str) -> None:
        loss = self.build(name)
        x = torch.randn(18, 8).requires_grad_()
        labels = torch.arange(6).repeat(3)
        optimiser = torch.optim.Adam([x, *loss.parameters()], lr=0.05)
        for _ in range(100):
            optimiser.zero_grad()
            loss(x, labels).backward()
            optimiser.step()
        assert torch.equal(loss.similarities(x).argmax(dim=1), labels)

    def test_proxies_start_kaiming_normal_by_fan_out(self, name: str) -> None:
        torch.manual_seed(0)
        (proxies,) = LOSSES[name](num_classes=100, dim=512).parameters()
        rows = 1000 if name == "soft-triple" else 100
        assert proxies.std().item() == pytest.approx(math.sqrt(2 / rows), rel=0.02)
        # Uniform values would be at most √3 standard deviations large.
        assert proxies.abs().max() > 3 * proxies.std()


def test_a_loss_of_ones_own_is_one_class_and_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    class NormSoftmax(ProxyLoss):
        def __init__(self, num_classes: int, dim: int) -> None:
            super().__init__(num_classes, dim)
            self.proxies = torch.nn.Parameter(torch.randn(num_classes, dim))

        def compute_similarities(self, embeddings: Tensor) -> Tensor:
            return F.normalize(embeddings) @ F.normalize(self.proxies).T

        def compute_loss(self, embeddings: Tensor, labels: Tensor) -> Tensor:
            return F.cross_entropy(20 * self.compute_similarities(embeddings), labels)

    monkeypatch.setitem(LOSSES, "norm-softmax", NormSoftmax)
    loss = build_loss("norm-softmax", num_classes=6, dim=8)
    assert torch.isfinite(loss(torch.randn(9, 8), data()[1]))


def test_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(CouceError, match=r"did you mean 'proxy-an'.*known: proxy-an, proxy-anchor"):
        build_loss("proxyan", num_classes=2, dim=2)


def test_options_reach_the_loss_and_unknown_ones_are_errors() -> None:
    loss = build_loss("proxy-an", num_classes=2, dim=2, alpha=16.0)
    assert isinstance(loss, ProxyAN)
    assert loss.alpha == 16
    with pytest.raises(CouceError, match=r"did you mean 'alpha'.*known: alpha, delta"):
        build_loss("proxy-an", num_classes=2, dim=2, alfa=1.0)
