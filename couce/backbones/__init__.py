"""Backbones by name. Each is split into two stages, and MSRCI intervenes between them."""

from pathlib import Path

from couce.backbones import bn_inception, mobilenet_v2, resnet, tiny
from couce.backbones.base import Backbone, BackboneSpec, Point
from couce.backbones.weights import fetch, load
from couce.errors import CouceError, unknown_name
from couce.plugins import find

BACKBONES: dict[str, BackboneSpec] = {
    "resnet50": resnet.RESNET50,
    "resnet18": resnet.RESNET18,
    "bn-inception": bn_inception.BN_INCEPTION,
    "mobilenet_v2": mobilenet_v2.MOBILENET_V2,
    "tiny": tiny.TINY,
}

__all__ = ["BACKBONES", "Backbone", "BackboneSpec", "Point", "build_backbone"]


def build_backbone(
    name: str, split: str | None = None, pretrained: bool | str | Path = False
) -> Backbone:
    """The backbone with this name.

    Args:
        name: a key of ``BACKBONES``, or the name of a plugin's backbone.
        split: the layer after which it is cut; None is the backbone's default.
        pretrained: True for the public ImageNet weights (downloaded once, checked by hash), False
            for random weights, or a file of weights (.pth or .safetensors). Weights that do not
            fit exactly are an error. Those of the classifier are ignored.
    """
    spec: BackboneSpec = find("backbone", name, BACKBONES)
    split = spec.default_split if split is None else split
    if split not in spec.points:
        raise unknown_name(f"split of {name}", split, spec.points)
    network = spec.build()
    if pretrained is True:
        if spec.weights is None:
            raise CouceError(f"{name} has no public weights; use pretrained=False or a file")
        load(network, fetch(*spec.weights), spec)
    elif pretrained is not False:
        load(network, Path(pretrained), spec)
    return Backbone(name, spec, split, network)
