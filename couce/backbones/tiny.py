"""A small residual network for 64-pixel images. It trains fast on a CPU, for demo and tests."""

from collections.abc import Mapping

import torch.nn.functional as F
from torch import Tensor, nn

from couce.backbones.base import BackboneSpec, Point
from couce.preprocess import Preprocess


class Block(nn.Module):
    """Two 3x3 convolutions and a shortcut (the basic block of ResNet)."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=True),
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.shortcut = nn.Sequential()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.body(x) + self.shortcut(x))


def _build() -> Mapping[str, nn.Module]:
    stem = nn.Sequential(
        nn.Conv2d(3, 32, 3, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(32),
        nn.ReLU(inplace=True),
    )
    return {
        "stem": stem,
        "layer1": Block(32, 32, stride=1),
        "layer2": nn.Sequential(Block(32, 64, stride=2), Block(64, 64, stride=1)),
        "layer3": Block(64, 64, stride=2),
        "layer4": Block(64, 128, stride=2),
    }


TINY = BackboneSpec(
    build=_build,
    points={"layer2": Point(64, 4), "layer3": Point(64, 8), "layer4": Point(128, 16)},
    default_split="layer3",
    preprocess=Preprocess(resize=72, crop=64),
)
