"""BN-Inception (Ioffe and Szegedy, ICML 2015), like the Caffe model of the public weights."""

import re
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from couce.backbones.base import BackboneSpec, Point
from couce.preprocess import Preprocess


def _conv(inputs: int, outputs: int, size: int, stride: int = 1) -> nn.Sequential:
    layers = nn.Sequential()
    layers.add_module("conv", nn.Conv2d(inputs, outputs, size, stride, padding=size // 2))
    layers.add_module("bn", nn.BatchNorm2d(outputs))
    layers.add_module("relu", nn.ReLU(inplace=True))
    return layers


class Inception(nn.Module):
    """Four parallel branches: 1x1, 3x3, two 3x3, and pooling with a 1x1 projection.

    A block that halves the resolution has no 1x1 branch and no projection. The last convolution of
    its other branches has a stride of 2.
    """

    def __init__(
        self,
        inputs: int,
        one: int,
        three: tuple[int, int],
        double: tuple[int, int],
        projection: int,
        pool: str = "avg",
    ) -> None:
        super().__init__()
        stride = 1 if one else 2
        self.outputs = one + three[1] + double[1] + (projection or inputs)
        if one:
            self.one = _conv(inputs, one, 1)
        self.three = nn.Sequential(_conv(inputs, three[0], 1), _conv(*three, 3, stride))
        self.double_three = nn.Sequential(
            _conv(inputs, double[0], 1),
            _conv(*double, 3),
            _conv(double[1], double[1], 3, stride),
        )
        if stride == 2:
            self.pool = nn.Sequential(nn.MaxPool2d(3, stride=2, ceil_mode=True))
        else:
            pooling = nn.AvgPool2d if pool == "avg" else nn.MaxPool2d
            self.pool = nn.Sequential(
                pooling(3, stride=1, padding=1, ceil_mode=True), _conv(inputs, projection, 1)
            )

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x) for branch in self.children()], dim=1)


# For each block the channels of 1x1, 3x3 (reduced, out), double 3x3 (reduced, out) and of the
# projection, and the kind of pooling.
_BLOCKS: dict[str, tuple[int, tuple[int, int], tuple[int, int], int, str]] = {
    "3a": (64, (64, 64), (64, 96), 32, "avg"),
    "3b": (64, (64, 96), (64, 96), 64, "avg"),
    "3c": (0, (128, 160), (64, 96), 0, "max"),
    "4a": (224, (64, 96), (96, 128), 128, "avg"),
    "4b": (192, (96, 128), (96, 128), 128, "avg"),
    "4c": (160, (128, 160), (128, 160), 128, "avg"),
    "4d": (96, (128, 192), (160, 192), 128, "avg"),
    "4e": (0, (128, 192), (192, 256), 0, "max"),
    "5a": (352, (192, 320), (160, 224), 128, "avg"),
    "5b": (352, (192, 320), (192, 224), 128, "max"),
}


def _build() -> Mapping[str, nn.Module]:
    layers: dict[str, nn.Module] = {
        "conv1": _conv(3, 64, 7, stride=2),
        "pool1": nn.MaxPool2d(3, stride=2, ceil_mode=True),
        "conv2_reduce": _conv(64, 64, 1),
        "conv2": _conv(64, 192, 3),
        "pool2": nn.MaxPool2d(3, stride=2, ceil_mode=True),
    }
    channels = 192
    for name, (one, three, double, projection, pool) in _BLOCKS.items():
        block = Inception(channels, one, three, double, projection, pool)
        layers[name] = block
        channels = block.outputs
    return layers


# Our names of the layers by their public names. A BatchNorm has "_bn" after the public name.
_STEM = {"conv1_7x7_s2": "conv1", "conv2_3x3_reduce": "conv2_reduce", "conv2_3x3": "conv2"}
_BRANCHES = {
    "1x1": "one",
    "3x3_reduce": "three.0",
    "3x3": "three.1",
    "double_3x3_reduce": "double_three.0",
    "double_3x3_1": "double_three.1",
    "double_3x3_2": "double_three.2",
    "pool_proj": "pool.1",
}


def _convert(public: dict[str, Tensor]) -> dict[str, Tensor]:
    """Converts public names to ours, and the file's BatchNorm tensors from (1, C) to (C,)."""
    state = {}
    for key, tensor in public.items():
        layer, _, field = key.rpartition(".")
        kind = "bn" if layer.endswith("_bn") else "conv"
        layer = layer.removesuffix("_bn")
        inception = re.fullmatch(r"inception_(\d\w)_(.+)", layer)
        if layer in _STEM:
            key = f"{_STEM[layer]}.{kind}.{field}"
        elif inception and inception[2] in _BRANCHES:
            key = f"{inception[1]}.{_BRANCHES[inception[2]]}.{kind}.{field}"
        squeeze = kind == "bn" and tensor.dim() == 2 and tensor.shape[0] == 1
        state[key] = tensor.squeeze(0) if squeeze else tensor
    return state


BN_INCEPTION = BackboneSpec(
    build=_build,
    points={"3b": Point(320, 8), "4d": Point(608, 16), "5b": Point(1024, 32)},
    default_split="4d",
    preprocess=Preprocess(
        channels="BGR", scale=255.0, mean=(104.0, 117.0, 128.0), std=(1.0, 1.0, 1.0)
    ),
    weights=(
        "http://data.lip6.fr/cadene/pretrainedmodels/bn_inception-52deb4733.pth",
        "52deb473314542a5c2f87e9e6f26f4ca42fe863d15f986414dbae8c2dfdd2353",
    ),
    classifier="last_linear.",
    convert=_convert,
)
