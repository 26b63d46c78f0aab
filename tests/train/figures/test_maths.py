"""The formulas of the analyses against slow and obvious implementations."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.axes import Axes
from PIL import Image, ImageDraw

from couce.backbones import build_backbone
from couce.data.base import LabelledImage, Split
from couce.errors import CouceError
from couce.machine.timing import time_in_turn
from couce.method import MSRCI, ODBA
from couce.models.paths import unique_names
from couce.network import EmbeddingNetwork
from couce.report.plots import Cell, draw, fitted, sheet
from couce.train.figures import fourier
from couce.train.figures.dictionary import effective_rank, newest_first, spread_atoms
from couce.train.figures.gradcam import enlarged, heat_maps, looking_at
from couce.train.figures.grid import Neighbours, choose, search
from couce.train.figures.runs import sample
from couce.train.figures.semantic import linear_cka, nearest_of_others


def test_linear_cka_against_the_definition_by_kernels() -> None:
    """The reference is HSIC of the centred N x N kernels in loops, as by Kornblith et al."""
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((12, 5)), rng.standard_normal((12, 3))

    def hsic(a: np.ndarray, b: np.ndarray) -> float:
        n = len(a)
        centring = np.eye(n) - 1 / n
        k, m = centring @ (a @ a.T) @ centring, centring @ (b @ b.T) @ centring
        return sum(k[i, j] * m[i, j] for i in range(n) for j in range(n))

    expected = hsic(x, y) / math.sqrt(hsic(x, x) * hsic(y, y))
    assert linear_cka(x, y) == pytest.approx(expected, rel=1e-12)
    turned, _ = np.linalg.qr(rng.standard_normal((5, 5)))
    assert linear_cka(x, 7 * x @ turned + 3) == pytest.approx(1)
    assert math.isnan(linear_cka(np.ones((4, 2)), x[:4]))


def test_a_class_mean_leaves_the_image_itself_out() -> None:
    rng = np.random.default_rng(1)
    labels = np.repeat([4, 7, 9], 3)
    clean, other = rng.standard_normal((2, 9, 5)).astype(np.float32)
    clean /= np.linalg.norm(clean, axis=1, keepdims=True)
    expected = []
    for n in range(9):
        others = np.arange(9) != n
        means = [clean[others & (labels == code)].mean(axis=0) for code in (4, 7, 9)]
        expected.append(np.argmax([other[n] @ mean / np.linalg.norm(mean) for mean in means]))
    np.testing.assert_array_equal(nearest_of_others(other, clean, labels), expected)


def test_phases_are_wrapped_to_the_half_open_circle() -> None:
    angles = torch.tensor([0.0, 3.0, -3.0, math.pi, -math.pi, 3.2, -3.2, 6.0, -6.0, 6.2832])
    for given, found in zip(angles.tolist(), fourier.wrapped(angles).tolist(), strict=True):
        assert -math.pi - 1e-6 < found <= math.pi + 1e-6
        assert math.cos(given) == pytest.approx(math.cos(found), abs=1e-6)
        assert math.sin(given) == pytest.approx(math.sin(found), abs=1e-6)
    assert fourier.wrapped(torch.tensor(-math.pi, dtype=torch.float64)) > 3.14  # pi, not -pi


def _by_bins(
    maps: torch.Tensor, changed: torch.Tensor, rings: int, ring: int
) -> tuple[float, float]:
    """ΔA and ΔΦ of one ring, computed from each bin of the whole spectrum."""
    height, width = maps.shape[-2:]
    a, b = np.fft.fft2(maps.double().numpy()), np.fft.fft2(changed.double().numpy())
    sums = np.zeros(4)
    for n, c in np.ndindex(maps.shape[:2]):
        for y, x in np.ndindex(height, width):
            fy, fx = min(y, height - y) / height, min(x, width - x) / width
            if min(int(math.hypot(fy, fx) * 2 * rings + 1e-9), rings - 1) != ring:
                continue
            before, after = a[n, c, y, x], b[n, c, y, x]
            turned = np.angle(after * np.conj(before))  # numpy wraps it
            sums += [
                (abs(after) - abs(before)) ** 2,
                abs(before) ** 2,
                abs(before) * turned**2,
                abs(before) * np.angle(before) ** 2,
            ]
    return math.sqrt(sums[0] / sums[1]), math.sqrt(sums[2] / sums[3])


@pytest.mark.parametrize("size", [(6, 8), (5, 7)])
def test_spectral_change_against_the_whole_spectrum_in_loops(size: tuple[int, int]) -> None:
    torch.manual_seed(0)
    maps = torch.randn(2, 3, *size)
    changed = maps + 0.3 * torch.randn(2, 3, *size)  # changes phases, unlike MSRCI
    sums = fourier.phase_and_amplitude(maps, changed, 3)
    for ring in range(3):
        found = fourier.change(sums[ring])
        amplitude, phase = _by_bins(maps, changed, 3, ring)
        assert found.amplitude == pytest.approx(amplitude)
        assert found.phase == pytest.approx(phase)


def test_msrci_keeps_phases_and_changes_each_ring_by_its_strength() -> None:
    maps = torch.randn(64, 4, 14, 14, generator=torch.Generator().manual_seed(0))
    module = MSRCI((0.2, 0.4, 0.8))
    changed = module(maps, torch.Generator().manual_seed(1))
    sums = fourier.phase_and_amplitude(maps, changed, 3)
    for ring, gamma in enumerate(module.gammas):
        found = fourier.change(sums[ring])
        assert found.phase < 1e-5
        # The root mean square of a uniform number from -1 to 1 is 1/√3.
        assert found.amplitude == pytest.approx(gamma / math.sqrt(3), rel=0.2)


def test_effective_rank_against_its_formula() -> None:
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((30, 6)) * np.array([5, 3, 1, 0.5, 0.1, 0.0])
    values = np.sqrt(np.maximum(np.linalg.eigvalsh(rows.T @ rows), 0))
    shares = [v / values.sum() for v in values if v > 1e-9]
    assert effective_rank(rows) == pytest.approx(math.exp(-sum(p * math.log(p) for p in shares)))
    assert effective_rank(np.ones((9, 4))) == pytest.approx(1)
    assert effective_rank(np.zeros((3, 4))) == 0


def test_the_newest_rows_of_the_queue_come_first() -> None:
    odba = ODBA(dim=4, capacity=6, gating=False)
    rows = torch.nn.functional.normalize(torch.randn(8, 4), dim=1)
    odba._enqueue(rows)
    odba._enqueue(rows[:1])
    expected = [rows[0], *rows.flip(0)[:5]]
    np.testing.assert_allclose(newest_first(odba), torch.stack(expected).numpy(), rtol=1e-6)


def test_chosen_atoms_lie_far_apart() -> None:
    angles = np.array([0, 0.01, 0.02, 1.5, 1.51, 3.1])
    atoms = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    chosen = spread_atoms(atoms, 3)
    assert len({int(angles[n] / 1.2) for n in chosen}) == 3
    assert len(spread_atoms(atoms, 99)) == 6


@pytest.mark.parametrize("layer", ["last", "split"])
def test_heat_against_the_gradient_of_a_copy_in_loops(layer: str) -> None:
    torch.manual_seed(0)
    network = EmbeddingNetwork(build_backbone("tiny"), dim=8).eval()
    images, direction = torch.randn(2, 3, 64, 64), torch.randn(2, 8)
    heat = heat_maps(network, images, direction, layer)
    stage1, stage2 = network.backbone.stage1, network.backbone.stage2
    for n in range(2):
        maps = stage1(images[n : n + 1])
        maps = (maps if layer == "split" else stage2(maps)).detach().requires_grad_(True)
        features = stage2(maps) if layer == "split" else maps
        m = network.head(features.mean(dim=(2, 3)))[0]
        (m @ direction[n]).backward()
        assert maps.grad is not None
        expected = torch.zeros(maps.shape[2:])
        for c in range(maps.shape[1]):
            expected += maps.grad[0, c].mean() * maps[0, c].detach()
        torch.testing.assert_close(heat[n], expected.clamp(min=0), rtol=1e-4, atol=1e-6)


def test_heat_lies_where_its_feature_looks() -> None:
    """A feature of tiny is centred near 16 times its place, not in the middle of its square."""
    torch.manual_seed(0)
    network = EmbeddingNetwork(build_backbone("tiny"), dim=8).eval()
    down, right = looking_at(network, 64, "last")
    assert 0 <= down < 4  # the middle of the square would be 7.5
    assert 0 <= right < 4
    maps = torch.zeros(1, 4, 4)
    maps[0, 2, 1] = 1
    large = enlarged(maps, 64, (3.0, 1.0))[0]
    assert divmod(int(large.argmax()), 64) == (35, 17)
    assert large[35, 17] == pytest.approx(1)
    assert large[35, 17 + 8] == pytest.approx(0.5)  # half of the way to the next feature


def test_neighbours_of_a_grid_never_hold_the_query() -> None:
    rows = np.repeat(np.eye(3, dtype=np.float32), 2, axis=0)  # pairs of equal rows
    found = search(rows, np.array([0, 0, 1, 2, 1, 2]), top=1)
    assert found.neighbours[:, 0].tolist() == [1, 0, 3, 2, 5, 4]
    assert found.right[:, 0].tolist() == [True, True, False, False, False, False]


def test_differing_queries_favour_no_run() -> None:
    one, other = np.zeros((40, 1), bool), np.zeros((40, 1), bool)
    one[:20], other[18:23] = True, True  # 18 are right only with one, 3 only with the other
    found = [Neighbours(np.zeros((40, 1), int), right) for right in (one, other)]
    chosen = choose(found, 6, differing=True, seed=0)
    assert sum(bool(one[q, 0]) for q in chosen) == 3
    assert not any(one[q, 0] == other[q, 0] for q in chosen)
    assert len(choose(found, 99, differing=True, seed=0)) == 21
    assert len(choose(found, 5, differing=False, seed=0)) == 5


def test_a_sample_has_whole_classes_evenly_spread() -> None:
    split = Split.of(
        LabelledImage(path=Path(f"{c}/{n}.png"), label=f"{c:02}", half="test")
        for c in range(20)
        for n in range(10)
    )
    some = sample(split, 50)
    assert some.names == ("00", "05", "10", "14", "19")
    assert len(some.paths) == 50
    few = sample(split, 6)
    assert np.bincount(few.labels).tolist() == [3, 3]
    assert sample(split, 999).paths == split.paths


def test_names_that_cannot_be_told_apart() -> None:
    with pytest.raises(CouceError, match="named twice"):
        unique_names([Path("a"), Path("a")])


def test_things_take_turns() -> None:
    order: list[str] = []
    times = time_in_turn([lambda: order.append("a"), lambda: order.append("b")], 5, warm_up=2)
    assert sorted(order[:2]) == ["a", "b"]
    assert order.count("a") == order.count("b") == 7
    assert [len(each.wall) for each in times] == [5, 5]
    assert all(each >= 0 for each in times[0].wall + times[1].cpu)


def test_names_are_shown_as_they_are() -> None:
    """A dollar sign must not start a formula, and an unknown letter must not be an error."""

    def paint(panels: list[Axes]) -> None:
        panels[0].set_title("$unclosed {mathrm$")

    assert draw(paint).width > 100
    picture = sheet([[Cell(Image.new("RGB", (9, 9)), "猫 $5 " + "x" * 99)]], ["名"])
    assert picture.width < 200
    pen = ImageDraw.Draw(picture)
    assert pen.textlength(fitted(pen, "x" * 99, 50)) <= 50
