"""A stage that no longer learns, in the form that is quickest to compute."""

import copy
from collections.abc import Callable
from itertools import pairwise

from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval


def frozen(stage: nn.Module) -> Callable[[Tensor], Tensor]:
    """What ``stage`` computes in evaluation mode, to rounding, with its BatchNorm folded into convolutions.

    A BatchNorm whose statistics stand still is a scale and an offset for each channel, which the convolution
    before it can have in its own weights. Half of the time of MobileNetV2's first stage goes into reading and
    writing maps for them. A copy: the stage itself, and what is saved and exported, stay as they are.
    """
    return _fold(copy.deepcopy(stage).eval().requires_grad_(False)).forward


def _fold(module: nn.Module) -> nn.Module:
    """In our backbones, a convolution that is followed by a BatchNorm among its siblings feeds it alone."""
    for (first, convolution), (second, norm) in pairwise(list(module.named_children())):
        if isinstance(convolution, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d):
            setattr(module, first, fuse_conv_bn_eval(convolution, norm))
            setattr(module, second, nn.Identity())
    for child in module.children():
        _fold(child)
    return module
