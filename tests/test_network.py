from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

from couce.backbones import BACKBONES, build_backbone
from couce.backbones.batchnorm import TwoViewBatchNorm2d
from couce.errors import CouceError
from couce.method import MSRCI
from couce.network import EmbeddingNetwork, Normalise


def network(**options: str) -> EmbeddingNetwork:
    torch.manual_seed(0)
    return EmbeddingNetwork(build_backbone("tiny"), dim=32, **options)  # type: ignore[arg-type]


def images() -> torch.Tensor:
    return torch.randn(6, 3, 64, 64, generator=torch.Generator().manual_seed(1))


def seeded(msrci: MSRCI) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda maps: msrci(maps, torch.Generator().manual_seed(2))


def statistics(module: nn.Module) -> dict[str, torch.Tensor]:
    return {
        k: v.clone() for k, v in module.state_dict().items() if "running" in k or "tracked" in k
    }


@pytest.mark.parametrize("training", [True, False])
def test_views_equal_two_passes_and_the_second_changes_no_statistics(training: bool) -> None:
    together, apart = network().train(training), network().train(training)
    msrci = MSRCI()
    m, m_tilde = together.views(images(), seeded(msrci))

    hidden = apart.backbone.stage1(images())
    expected = apart.embed_maps(apart.backbone.stage2(hidden))
    clean = statistics(apart)
    intervened = seeded(msrci)(hidden)
    expected_tilde = apart.embed_maps(apart.backbone.stage2(intervened))

    torch.testing.assert_close(m, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(m_tilde, expected_tilde, rtol=1e-4, atol=1e-5)
    for name, value in statistics(together).items():
        torch.testing.assert_close(value, clean[name], msg=name)


def test_training_changes_statistics_by_the_clean_view_alone() -> None:
    """Checks the test above: it would notice if the intervened view changed the statistics."""
    net = network().train()
    before = statistics(net.backbone.stage2)
    net.views(images(), seeded(MSRCI((0.9, 0.9, 0.9))))
    after = statistics(net.backbone.stage2)
    assert any(not torch.equal(before[k], after[k]) for k in before)
    mixed = network().train()
    hidden = mixed.backbone.stage1(images())
    tilde = seeded(MSRCI((0.9, 0.9, 0.9)))(hidden)
    mixed.backbone.stage2(torch.cat([hidden, tilde]))
    stacked = statistics(mixed.backbone.stage2)
    assert any(not torch.allclose(after[k], stacked[k]) for k in after)


def test_two_view_mode_ends_with_an_exception() -> None:
    net = network()
    with pytest.raises(RuntimeError):
        net.views(torch.randn(6, 4, 64, 64), MSRCI())
    norms = [m for m in net.modules() if isinstance(m, TwoViewBatchNorm2d)]
    assert norms
    assert not any(norm.two_views for norm in norms)


def test_foreign_batch_norm_is_refused_rather_than_mixed() -> None:
    net = network().train()
    nn.SyncBatchNorm.convert_sync_batchnorm(net)
    with pytest.raises(TypeError, match="would mix the two views"):
        net.views(images(), MSRCI())


def test_no_intervention_is_no_second_view() -> None:
    net = network().eval()
    m, m_tilde = net.views(images(), None)
    assert m_tilde is None
    assert torch.equal(m, net(images()))


def test_clean_forward_ignores_the_intervention() -> None:
    net = network().eval()
    m, _ = net.views(images(), MSRCI())
    torch.testing.assert_close(net(images()), m, rtol=1e-4, atol=1e-5)


def test_pooling() -> None:
    features = torch.randn(2, 128, 3, 5)
    average, both = network(), network(pooling="avg+max")
    flat = features.flatten(2)
    torch.testing.assert_close(average.embed_maps(features), average.head(flat.mean(2)))
    pooled = flat.mean(2) + flat.max(2).values
    torch.testing.assert_close(both.embed_maps(features), both.head(pooled))
    with pytest.raises(CouceError, match="known: avg, avg"):
        network(pooling="max")


@pytest.mark.parametrize("name", ["resnet50", "bn-inception"])
def test_normalise_equals_the_preprocessing(name: str) -> None:
    preprocess = BACKBONES[name].preprocess
    pixels = np.random.default_rng(0).integers(0, 256, (2, 5, 4, 3), dtype=np.uint8)
    actual = Normalise(preprocess)(torch.from_numpy(pixels))
    torch.testing.assert_close(actual, torch.from_numpy(preprocess.normalise(pixels)))
    assert actual.is_contiguous(memory_format=torch.channels_last)


def test_a_mixed_view_is_the_intervened_one_alone() -> None:
    net, msrci = network().eval(), MSRCI()
    m, none = net.views(images(), seeded(msrci), mixed=True)
    assert none is None
    torch.testing.assert_close(m, net.views(images(), seeded(msrci))[1])
