"""The interface of backbones: two stages, and the sizes of their feature maps."""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor, nn

from couce.backbones.batchnorm import accept_two_views
from couce.preprocess import Preprocess


class Point(NamedTuple):
    """A place in a backbone, and the size of its feature map."""

    channels: int
    stride: int  # pixels of the image for each pixel of the map


@dataclass(frozen=True)
class BackboneSpec:
    """How to build a backbone, where it can be cut, and how its images are prepared."""

    # The layers by name, in order. The name of a layer and the key of its tensor together are the
    # key in the public weights: "layer3" and "0.conv1.weight" make "layer3.0.conv1.weight".
    build: Callable[[], Mapping[str, nn.Module]]
    points: Mapping[str, Point]  # the layers after which it can be cut; the last one is its end
    default_split: str
    preprocess: Preprocess
    weights: tuple[str, str] | None = None  # address and sha256 of the public weights
    classifier: str = ""  # how the keys of the classifier start; these tensors are ignored
    # Converts the tensors of a public file if their names or shapes differ from ours.
    convert: Callable[[dict[str, Tensor]], dict[str, Tensor]] = dict


class Backbone(nn.Module):
    """A backbone in two stages. ``stage2(stage1(images))`` is the last feature map, before pooling.

    Attributes:
        channels, stride: the size of the last feature map.
        split: the layer after which the backbone is cut.
        split_channels, split_stride: the size of the feature map after this layer.
        preprocess: how the images are prepared.
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
        # The name of a module must not contain a dot, but layers have names like "features.13".
        named = [(key.replace(".", "_"), layer) for key, layer in layers.items()]
        self.stage1 = nn.Sequential(OrderedDict(named[:cut]))
        self.stage2 = nn.Sequential(OrderedDict(named[cut:]))
        accept_two_views(self)

    def forward(self, images: Tensor) -> Tensor:
        return self.stage2(self.stage1(images))
