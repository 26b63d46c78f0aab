"""A frozen stage in a faster form: its BatchNorm is folded into its convolutions."""

import copy
from collections.abc import Callable
from itertools import pairwise

from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval


def frozen(stage: nn.Module) -> Callable[[Tensor], Tensor]:
    """A function that computes the same as ``stage`` in evaluation mode, up to rounding.

    A BatchNorm with fixed statistics is a scale and an offset for each channel, and the weights of
    the convolution before it can include both. This saves reading and writing feature maps, which
    is half of the time of MobileNetV2's first stage. ``stage`` itself is copied and not changed, so
    saved and exported models stay the same.
    """
    return _fold(copy.deepcopy(stage).eval().requires_grad_(False)).forward


def _fold(module: nn.Module) -> nn.Module:
    """Folds each BatchNorm into the convolution before it, and returns ``module``.

    In our backbones, the output of such a convolution goes into this BatchNorm and nowhere else.
    """
    for (first, convolution), (second, norm) in pairwise(list(module.named_children())):
        if isinstance(convolution, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d):
            setattr(module, first, fuse_conv_bn_eval(convolution, norm))
            setattr(module, second, nn.Identity())
    for child in module.children():
        _fold(child)
    return module
