"""ResNet (He et al., CVPR 2016) from torchvision."""

from collections.abc import Mapping

from torch import nn

from couce.backbones.base import BackboneSpec, Point
from couce.preprocess import IMAGENET


def _spec(name: str, sha256: str, expansion: int) -> BackboneSpec:
    def build() -> Mapping[str, nn.Module]:
        # Imported here: torchvision takes seconds to import, and not every run needs it.
        from torchvision import models

        layers = dict(getattr(models, name)().named_children())
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
        weights=(f"https://download.pytorch.org/models/{name}-{sha256}.pth", sha256),
        classifier="fc.",
    )


# The IMAGENET1K_V1 weights of torchvision, which the metric-learning literature starts from.
RESNET50 = _spec("resnet50", "0676ba61", expansion=4)
RESNET18 = _spec("resnet18", "f37072fd", expansion=1)
