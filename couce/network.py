"""The embedding network: backbone, pooling, one linear head."""

from typing import Literal

import torch
from torch import Tensor, nn

from couce.backbones import Backbone
from couce.backbones.batchnorm import two_views
from couce.errors import unknown_name
from couce.method.msrci import MSRCI

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
        return self._embed(self.backbone(images))

    def views(
        self,
        images: Tensor,
        intervention: MSRCI | None,
        generator: torch.Generator | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Clean and intervened embeddings (m, m̃); stage2 sees both as one batch of 2N.

        Without an intervention there is no second view: (m, None).
        """
        if intervention is None:
            return self(images), None
        clean = self.backbone.stage1(images)  # (N, C, H', W')
        with two_views(self.backbone.stage2):
            features = self.backbone.stage2(torch.cat([clean, intervention(clean, generator)]))
        m, m_tilde = self._embed(features).chunk(2)
        return m, m_tilde

    def _embed(self, features: Tensor) -> Tensor:
        pooled = features.mean(dim=(2, 3))  # (N, C)
        if self.pooling == "avg+max":
            pooled = pooled + features.amax(dim=(2, 3))
        return self.head(pooled)
