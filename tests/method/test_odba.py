"""ODBA against the paper's formulas in plain loops over rows and channels."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from couce.errors import CouceError
from couce.method import ODBA
from couce.method.odba import Attention


class LoopODBA:
    """The formulas as they are in the paper, computed number by number."""

    def __init__(self, dim: int, capacity: int, momentum: float = 0.999) -> None:
        self.dim, self.capacity, self.momentum = dim, capacity, momentum
        self.rows: list[list[float]] = []  # oldest first
        self.ema: dict[str, list[float]] = {}

    def update(self, embeddings: Tensor, labels: Tensor) -> None:
        unit = []
        for row in embeddings.tolist():
            length = math.sqrt(sum(value**2 for value in row))
            unit.append([value / length for value in row])
        self._measure(unit, labels.tolist())
        gate = self.gate()
        for u in unit:
            gated = [w * value for w, value in zip(gate, u, strict=True)]
            length = math.sqrt(sum(value**2 for value in gated))
            if length > 0:
                self.rows.append([value / length for value in gated])
        self.rows = self.rows[-self.capacity :]

    def _measure(self, unit: list[list[float]], labels: list[int]) -> None:
        kept = [i for i, label in enumerate(labels) if labels.count(label) > 1]
        if len({labels[i] for i in kept}) < 2:
            return
        intra, inter = [], []
        for c in range(self.dim):
            batch_mean = sum(unit[i][c] for i in kept) / len(kept)
            within = between = 0.0
            for label in {labels[i] for i in kept}:
                members = [unit[i][c] for i in kept if labels[i] == label]
                mean = sum(members) / len(members)
                within += sum((value - mean) ** 2 for value in members)
                between += len(members) * (mean - batch_mean) ** 2
            intra.append(within / len(kept))
            inter.append(between / len(kept))
        ratio = [a / (b + 1e-8) for a, b in zip(intra, inter, strict=True)]
        for name, new in (("ratio", ratio), ("intra", intra), ("inter", inter)):
            old = self.ema.get(name)
            self.ema[name] = [
                n if old is None else self.momentum * old[c] + (1 - self.momentum) * n
                for c, n in enumerate(new)
            ]

    def gate(self) -> list[float]:
        if not self.ema:
            return [0.0] * self.dim
        return [
            1 / (1 + math.exp(-(self.ema["ratio"][c] - 1.0)))
            if self.ema["intra"][c] + self.ema["inter"][c] > 1e-4
            else 0.0
            for c in range(self.dim)
        ]

    def attend(self, embedding: list[float]) -> list[float]:
        logits = [
            sum(a * b for a, b in zip(embedding, row, strict=True)) / math.sqrt(self.dim)
            for row in self.rows
        ]
        weights = [math.exp(logit) for logit in logits]
        return [
            sum(w * row[c] for w, row in zip(weights, self.rows, strict=True)) / sum(weights)
            for c in range(self.dim)
        ]

    def loss(self, embeddings: Tensor) -> float:
        squares = []
        for m in embeddings.tolist():
            z = self.attend(m)
            dot = sum(a * b for a, b in zip(m, z, strict=True))
            lengths = math.sqrt(sum(a * a for a in m)) * math.sqrt(sum(b * b for b in z))
            squares.append((dot / lengths) ** 2)
        return sum(squares) / len(squares)


def batch(seed: int, rows: int = 12, dim: int = 6) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = 3 * torch.randn(rows, dim, generator=generator, dtype=torch.float64)
    labels = torch.randint(0, 5, (rows,), generator=generator)
    return x + labels[:, None] * torch.linspace(0, 2, dim, dtype=torch.float64), labels


def filled_in_order(odba: ODBA) -> Tensor:
    """The rows of the dictionary, the oldest first."""
    if odba.filled < odba.capacity:
        return odba.dictionary[: odba.filled]
    return odba.dictionary.roll(-int(odba.pointer), dims=0)


@pytest.mark.parametrize("momentum", [0.0, 0.9, 0.999])
def test_equals_the_loops_through_several_wrap_arounds(momentum: float) -> None:
    odba = ODBA(6, capacity=20, momentum=momentum).double()
    loops = LoopODBA(6, capacity=20, momentum=momentum)
    for seed in range(7):  # 84 embeddings for 20 rows
        x, labels = batch(seed)
        odba.update(x, labels)
        loops.update(x, labels)
        torch.testing.assert_close(odba.gate, torch.tensor(loops.gate(), dtype=torch.float64))
        torch.testing.assert_close(
            filled_in_order(odba), torch.tensor(loops.rows, dtype=torch.float64)
        )
        z = torch.tensor([loops.attend(m) for m in x.tolist()], dtype=torch.float64)
        torch.testing.assert_close(odba.attend(x), z)
        assert odba.loss(x).item() == pytest.approx(loops.loss(x), rel=1e-6)


def test_dictionary_rows_have_unit_length_and_only_filled_ones_are_read() -> None:
    odba = ODBA(6, capacity=50).double()
    odba.update(*batch(0))
    assert int(odba.filled) == 12
    torch.testing.assert_close(
        odba.dictionary[:12].norm(dim=1), torch.ones(12, dtype=torch.float64)
    )
    # If attention included the 38 empty rows, z would shrink towards zero.
    x, _ = batch(1)
    odba_full = ODBA(6, capacity=12).double()
    odba_full.update(*batch(0))
    torch.testing.assert_close(odba.attend(x), odba_full.attend(x))


def test_gate_opens_for_background_and_shuts_for_semantics_and_inert_channels() -> None:
    labels = torch.arange(40) // 4
    x = torch.zeros(40, 3)
    x[:, 0] = torch.randn(40, generator=torch.Generator().manual_seed(0))  # varies within classes
    x[:, 1] = labels - 4.5 + 0.01 * x[:, 0]  # varies between classes only
    x = F.normalize(torch.cat([x, 10 * torch.ones(40, 1)], dim=1), dim=1)
    x[:, 2] = 0.0  # never varies
    odba = ODBA(4)
    odba.update(x, labels)
    assert odba.gate[0] > 0.7
    assert odba.gate[1] < 0.3
    assert odba.gate[2] == 0


def test_a_batch_beyond_capacity_keeps_its_last_rows() -> None:
    x, labels = batch(3, rows=30)
    small, large = ODBA(6, capacity=8).double(), ODBA(6, capacity=100).double()
    small.update(x, labels)
    large.update(x, labels)
    torch.testing.assert_close(filled_in_order(small), filled_in_order(large)[-8:])


@pytest.mark.parametrize(
    ("x", "labels"),
    [
        (torch.randn(8, 6), torch.zeros(8, dtype=torch.long)),
        (torch.randn(8, 6), torch.arange(8)),
        (torch.randn(1, 6), torch.tensor([3])),
        (torch.ones(8, 6), torch.arange(8) // 2),
        (torch.zeros(8, 6), torch.arange(8) // 2),
        (torch.randn(64, 6), torch.arange(64) // 2),
        (1e15 * torch.randn(8, 6), torch.arange(8) // 2),
    ],
    ids=["one class", "single images", "one image", "constant", "zero", "beyond K", "huge"],
)
def test_awkward_batches_give_finite_numbers(x: Tensor, labels: Tensor) -> None:
    odba = ODBA(6, capacity=16)
    for m, y in ((x, labels), (torch.randn(8, 6), torch.arange(8) // 2), (x, labels)):
        m = m.clone().requires_grad_()
        odba.update(m, y)
        loss = odba.loss(m)
        loss.backward()
        assert torch.isfinite(loss)
        assert torch.isfinite(odba.gate).all()
        assert torch.isfinite(odba.dictionary).all()
        assert m.grad is not None
        assert torch.isfinite(m.grad).all()


def test_no_evidence_admits_nothing() -> None:
    odba = ODBA(6)
    odba.update(torch.randn(8, 6), torch.arange(8))
    assert int(odba.filled) == 0
    assert odba.loss(torch.randn(3, 6)) == 0


def test_samples_gated_to_zero_are_not_enqueued() -> None:
    odba = ODBA(6, capacity=30)
    odba.update(*(t.float() if t.is_floating_point() else t for t in batch(0)))
    before = int(odba.filled)
    odba.inert = math.inf
    odba.update(torch.randn(5, 6), torch.tensor([0, 0, 1, 1, 1]))
    assert int(odba.filled) == before


def test_no_gradient_reaches_the_dictionary() -> None:
    odba = ODBA(6, detach=False)
    x = torch.randn(8, 6, requires_grad=True)
    odba.update(x, torch.arange(8) // 2)
    odba.loss(x).backward()
    assert not odba.dictionary.requires_grad
    assert odba.dictionary.grad is None
    assert not list(odba.parameters())


def test_detach_lets_gradients_through_m_only() -> None:
    x, labels = batch(5)
    x = x.requires_grad_()
    odba = ODBA(6, capacity=20).double()
    odba.update(x, labels)
    (actual,) = torch.autograd.grad(odba.loss(x), x)
    z = odba.attend(x.detach())
    (expected,) = torch.autograd.grad(F.cosine_similarity(x, z, dim=1).square().mean(), x)
    torch.testing.assert_close(actual, expected, rtol=1e-6, atol=1e-9)
    odba.detach = False
    (through_attention,) = torch.autograd.grad(odba.loss(x), x)
    assert (through_attention - expected).abs().max() > 1e-6


@pytest.mark.parametrize("attention", ["raw", "unit"])
def test_loss_passes_gradcheck(attention: Attention) -> None:
    x, labels = batch(2, rows=6)
    odba = ODBA(6, capacity=20, detach=False, attention=attention).double()
    odba.update(x, labels)
    assert torch.autograd.gradcheck(odba.loss, (x.requires_grad_(),))
    assert torch.autograd.gradcheck(odba.project, (x.requires_grad_(),))


def test_unit_attention_reads_close_to_the_mean_of_the_dictionary() -> None:
    odba = ODBA(512, attention="unit")
    odba.update(torch.randn(60, 512), torch.arange(60) // 3)
    mean = odba.dictionary[:60].mean(dim=0).expand(4, -1)
    z = odba.attend(100 * torch.randn(4, 512))
    assert F.cosine_similarity(z, mean, dim=1).min() > 0.999


def test_projection_is_orthogonal_to_what_was_read() -> None:
    x, labels = batch(4)
    odba = ODBA(6).double()
    odba.update(x, labels)
    z = odba.attend(x)
    along = (odba.project(x) * z).sum(dim=1)
    torch.testing.assert_close(along, torch.zeros_like(along), atol=1e-6, rtol=0)


def test_without_gating_the_embeddings_themselves_are_enqueued() -> None:
    x, labels = batch(6)
    odba = ODBA(6, gating=False).double()
    odba.update(x, labels)
    torch.testing.assert_close(odba.dictionary[: len(x)], F.normalize(x, dim=1))


def test_state_survives_saving() -> None:
    first, second = ODBA(6, capacity=20).double(), ODBA(6, capacity=20).double()
    for seed in range(3):
        first.update(*batch(seed))
    second.load_state_dict(first.state_dict())
    for odba in (first, second):
        odba.update(*batch(9))
    for name, value in first.state_dict().items():
        assert torch.equal(value, second.state_dict()[name]), name


def test_one_class_says_nothing_of_the_variance_between_classes() -> None:
    """Otherwise Var_intra / (0 + ε) would spoil the running ratio for thousands of steps."""
    odba = ODBA(6).double()
    odba.update(*batch(0))
    ratio, filled = odba.ratio.clone(), int(odba.filled)
    odba.update(batch(1)[0], torch.zeros(12, dtype=torch.long))
    assert torch.equal(odba.ratio, ratio)
    assert int(odba.filled) == filled + 12  # enqueued with the unchanged gate


@pytest.mark.parametrize("bad", [math.inf, math.nan])
def test_a_row_that_is_not_finite_is_left_out(bad: float) -> None:
    x, labels = batch(0)
    spoilt = torch.cat([x, torch.full((1, 6), bad, dtype=torch.float64)])
    clean, odba = ODBA(6).double(), ODBA(6).double()
    clean.update(x, labels)
    odba.update(spoilt, torch.cat([labels, labels[:1]]))
    for name, value in clean.state_dict().items():
        assert torch.equal(value, odba.state_dict()[name]), name


def test_half_precision_is_computed_in_full() -> None:
    odba = ODBA(6)
    x = torch.randn(8, 6, dtype=torch.bfloat16)
    assert odba.loss(x.half()) == 0  # the dictionary is empty, and ε must not underflow
    odba.update(x, torch.arange(8) // 2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss, z = odba.loss(x), odba.attend(x)
    assert loss.dtype == z.dtype == torch.float32
    torch.testing.assert_close(loss, odba.loss(x.float()))


def test_two_forward_passes_may_precede_a_backward_pass() -> None:
    odba = ODBA(6, detach=False)
    x = torch.randn(8, 6, requires_grad=True)
    total = torch.zeros(())
    for _ in range(2):
        odba.update(x, torch.arange(8) // 2)
        total = total + odba.loss(x)
    total.backward()
    assert x.grad is not None


@pytest.mark.parametrize("wrong", [{"capacity": 0}, {"momentum": 1.5}, {"attention": "both"}])
def test_wrong_settings_are_named(wrong: dict[str, object]) -> None:
    with pytest.raises(CouceError, match=next(iter(wrong))):
        ODBA(6, **wrong)  # type: ignore[arg-type]
