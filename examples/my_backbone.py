"""A backbone of one's own: three convolutions, cut after the second.

couce train demo --plugin examples/my_backbone.py --backbone my-net --set weights=none
"""

from torch import nn

from couce.backbones import BACKBONES, BackboneSpec, Point
from couce.preprocess import Preprocess


def block(before: int, after: int) -> nn.Sequential:
    convolution = nn.Conv2d(before, after, 3, stride=2, padding=1, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(after), nn.ReLU())


BACKBONES["my-net"] = BackboneSpec(
    build=lambda: {"first": block(3, 16), "second": block(16, 32), "third": block(32, 64)},
    # Channels of the map after each layer, and the input pixels that one of its pixels spans.
    points={"first": Point(16, 2), "second": Point(32, 4), "third": Point(64, 8)},
    default_split="second",
    preprocess=Preprocess(resize=64, crop=56),
)
