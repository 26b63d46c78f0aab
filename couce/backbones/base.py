"""What a backbone is: two stages, and what is known of them without running them."""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor, nn

from couce.preprocess import Preprocess


class Point(NamedTuple):
    """A place in a backbone: the channels of the map there, and the input pixels that one of its
    pixels spans."""

    channels: int
    stride: int


@dataclass(frozen=True)
class BackboneSpec:
    """How to build a backbone, where it can be cut, and what it wants to be fed."""

    # The layers in order, by name. With the name in front, the keys of their tensors are those of
    # the public weights: "layer3" and "0.conv1.weight".
    build: Callable[[], Mapping[str, nn.Module]]
    points: Mapping[str, Point]  # the layers it can be cut after; the last one is its end
    default_split: str
    preprocess: Preprocess
    weights: tuple[str, str] | None = None  # address of the public weights, and their sha256
    classifier: str = ""  # what the keys of the classifier start with, which is left aside
    # Makes the tensors of a public file ours, where names or shapes differ.
    convert: Callable[[dict[str, Tensor]], dict[str, Tensor]] = dict


class Backbone(nn.Module):
    """``stage2(stage1(images))`` is the last feature map, before pooling.

    Attributes:
        channels, stride: of the last feature map.
        split: the layer after which it is cut.
        split_channels, split_stride: of the feature map there.
        preprocess: what the images must have gone through.
    """

    def __init__(
        self, name: str, spec: BackboneSpec, split: str, layers: Mapping[str, nn.Module]
    ) -> None:
        super().__init__()
        self.name = name
        self.split = split
        self.split_channels, self.split_stride = spec.points[split]
        self.channels, self.stride = list(spec.points.values())[-1]
        self.preprocess = spec.preprocess
        cut = list(layers).index(split) + 1
        # A module's name may not contain a dot ("features.13").
        named = [(key.replace(".", "_"), layer) for key, layer in layers.items()]
        self.stage1 = nn.Sequential(OrderedDict(named[:cut]))
        self.stage2 = nn.Sequential(OrderedDict(named[cut:]))

    def forward(self, images: Tensor) -> Tensor:
        return self.stage2(self.stage1(images))
