"""MobileNetV2 (Sandler et al., CVPR 2018) from torchvision: light enough to train on a CPU."""

from collections.abc import Mapping

from torch import nn

from couce.backbones.base import BackboneSpec, Point
from couce.preprocess import IMAGENET


def _build() -> Mapping[str, nn.Module]:
    # Imported here: torchvision takes seconds to import, and not every run needs it.
    from torchvision.models import mobilenet_v2

    features = mobilenet_v2().features
    return {f"features.{name}": layer for name, layer in features.named_children()}


MOBILENET_V2 = BackboneSpec(
    build=_build,
    # The last block of each resolution.
    points={
        "features.6": Point(32, 8),
        "features.13": Point(96, 16),
        "features.18": Point(1280, 32),
    },
    default_split="features.13",
    preprocess=IMAGENET,
    # The IMAGENET1K_V1 weights of torchvision.
    weights=("https://download.pytorch.org/models/mobilenet_v2-b0353104.pth", "b0353104"),
    classifier="classifier.",
)
