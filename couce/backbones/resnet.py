"""ResNet (He et al., CVPR 2016) from torchvision."""

from collections.abc import Callable, Mapping
from typing import Any

from torch import nn
from torchvision.models import ResNet18_Weights, ResNet50_Weights, resnet18, resnet50

from couce.backbones.base import BackboneSpec, Point
from couce.backbones.batchnorm import TwoViewBatchNorm2d
from couce.preprocess import IMAGENET


def _spec(constructor: Callable[..., Any], weights: Any, expansion: int) -> BackboneSpec:
    def build() -> Mapping[str, nn.Module]:
        layers = dict(constructor(norm_layer=TwoViewBatchNorm2d).named_children())
        del layers["avgpool"], layers["fc"]
        return layers

    return BackboneSpec(
        build=build,
        points={
            "layer2": Point(128 * expansion, 8),
            "layer3": Point(256 * expansion, 16),
            "layer4": Point(512 * expansion, 32),
        },
        default_split="layer3",
        preprocess=IMAGENET,
        # torchvision ends the file's name with the start of its sha256.
        weights=(weights.url, weights.url.rpartition("-")[2].removesuffix(".pth")),
        classifier="fc.",
    )


# V1: the weights that the metric-learning literature starts from.
RESNET50 = _spec(resnet50, ResNet50_Weights.IMAGENET1K_V1, expansion=4)
RESNET18 = _spec(resnet18, ResNet18_Weights.IMAGENET1K_V1, expansion=1)
