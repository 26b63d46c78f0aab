"""The embedding network: backbone, pooling, one linear head."""

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn

from couce.backbones import Backbone
from couce.backbones.batchnorm import two_views
from couce.errors import unknown_name
from couce.preprocess import Preprocess

Pooling = Literal["avg", "avg+max"]


class EmbeddingNetwork(nn.Module):
    """Images (N, 3, H, W) to raw embeddings m (N, d), before l2-normalisation.

    ``pooling``: global ``avg`` as in the paper, or ``avg+max``, the sum of both, as in the code of
    Proxy-Anchor and Proxy-AN. The head starts, as there, kaiming normal by fan-out.
    """

    def __init__(self, backbone: Backbone, dim: int = 512, pooling: Pooling = "avg") -> None:
        super().__init__()
        if pooling not in ("avg", "avg+max"):
            raise unknown_name("pooling", pooling, ("avg", "avg+max"))
        self.backbone = backbone
        self.dim = dim
        self.pooling = pooling
        self.head = nn.Linear(backbone.channels, dim)
        nn.init.kaiming_normal_(self.head.weight, mode="fan_out")
        nn.init.zeros_(self.head.bias)

    def forward(self, images: Tensor) -> Tensor:
        return self.embed_maps(self.backbone(images))

    def tail(self, maps: Tensor) -> Tensor:
        """What follows the split: feature maps there (N, C, H', W') to raw embeddings (N, d)."""
        return self.embed_maps(self.backbone.stage2(maps))

    def views(
        self,
        images: Tensor,
        intervention: Callable[[Tensor], Tensor] | None,
        mixed: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Clean and intervened embeddings (m, m̃); stage2 sees both as one batch of 2N.

        ``intervention`` (an MSRCI) changes the feature map between the stages. Without one there is
        no second view: (m, None). If ``mixed`` there is none either, and m is the intervened.
        """
        return self.tail_views(self.backbone.stage1(images), intervention, mixed)

    def tail_views(
        self, clean: Tensor, intervention: Callable[[Tensor], Tensor] | None, mixed: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """:meth:`views` of the feature maps at the split, (N, C, H', W')."""
        if intervention is None:
            return self.tail(clean), None
        if mixed:
            return self.tail(intervention(clean)), None
        with two_views(self.backbone.stage2):
            features = self.backbone.stage2(torch.cat([clean, intervention(clean)]))
        m, m_tilde = self.embed_maps(features).chunk(2)
        return m, m_tilde

    def embed_maps(self, features: Tensor) -> Tensor:
        """The backbone's last maps (N, C, H', W') to raw embeddings (N, d): pooling and head."""
        pooled = features.mean(dim=(2, 3))  # (N, C)
        if self.pooling == "avg+max":
            pooled = pooled + features.amax(dim=(2, 3))
        return self.head(pooled)


class Normalise(nn.Module):
    """uint8 RGB pixels (N, H, W, 3) to what the backbone was trained on, (N, 3, H, W).

    The same as :meth:`Preprocess.normalise`, on the device and as part of a graph.
    """

    gain: Tensor  # (3, 1, 1)
    offset: Tensor  # (3, 1, 1)

    def __init__(self, preprocess: Preprocess) -> None:
        super().__init__()
        std = torch.tensor(preprocess.std)
        self.flip = preprocess.channels == "BGR"
        self.register_buffer("gain", (preprocess.scale / 255 / std).view(3, 1, 1))
        self.register_buffer("offset", (torch.tensor(preprocess.mean) / std).view(3, 1, 1))

    def forward(self, pixels: Tensor) -> Tensor:
        # A permuted NHWC tensor is NCHW in channels-last layout already: nothing is moved.
        images = pixels.permute(0, 3, 1, 2)
        images = images.flip(1) if self.flip else images
        return images * self.gain - self.offset
