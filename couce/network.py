"""The embedding network: a backbone, pooling and one linear head."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Literal, Self

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from couce.backbones import Backbone, build_backbone
from couce.backbones.batchnorm import two_views
from couce.data.images import ImageStore
from couce.errors import CouceError, unknown_name
from couce.preprocess import Preprocess

Pooling = Literal["avg", "avg+max"]

_BATCH = 120  # how many images are embedded at once


class EmbeddingNetwork(nn.Module):
    """Maps images (N, 3, H, W) to raw embeddings m (N, d), before l2-normalisation.

    ``pooling`` is global ``avg`` as in the paper, or ``avg+max``, the sum of mean and maximum, as
    in the code of Proxy-Anchor and Proxy-AN. As there, the head starts with Kaiming normal weights
    by fan-out.
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

    def on(self, device: torch.device) -> Self:
        """Moves the network to a device, in the memory layout that is fastest for convolutions."""
        return self.to(device).to(memory_format=torch.channels_last)

    def forward(self, images: Tensor) -> Tensor:
        return self.embed_maps(self.backbone(images))

    def tail(self, maps: Tensor) -> Tensor:
        """Raw embeddings (N, d) of feature maps at the split (N, C, H', W')."""
        return self.embed_maps(self.backbone.stage2(maps))

    def views(
        self,
        images: Tensor,
        intervention: Callable[[Tensor], Tensor] | None,
        mixed: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Clean and intervened embeddings (m, m̃). Both go through stage2 as one batch of 2N.

        ``intervention`` (an MSRCI) changes the feature map between the stages. Without one there is
        no second view: (m, None). With ``mixed`` there is no second view either, and m is the
        intervened view.
        """
        return self.tail_views(self.backbone.stage1(images), intervention, mixed)

    def tail_views(
        self, clean: Tensor, intervention: Callable[[Tensor], Tensor] | None, mixed: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """The same as :meth:`views`, from the feature maps at the split (N, C, H', W')."""
        if intervention is None:
            return self.tail(clean), None
        if mixed:
            return self.tail(intervention(clean)), None
        with two_views(self.backbone.stage2):
            features = self.backbone.stage2(torch.cat([clean, intervention(clean)]))
        m, m_tilde = self.embed_maps(features).chunk(2)
        return m, m_tilde

    def embed_maps(self, features: Tensor) -> Tensor:
        """Pooling and head: raw embeddings (N, d) of the backbone's last maps (N, C, H', W')."""
        pooled = features.mean(dim=(2, 3))  # (N, C)
        if self.pooling == "avg+max":
            pooled = pooled + features.amax(dim=(2, 3))
        return self.head(pooled)


class Normalise(nn.Module):
    """Turns uint8 RGB pixels (N, H, W, 3) into the input of the backbone (N, 3, H, W).

    It does the same as :meth:`Preprocess.normalise`, but on the device and as part of a graph.
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
        # A permuted NHWC tensor already is NCHW in channels-last layout, so nothing is copied.
        images = pixels.permute(0, 3, 1, 2)
        images = images.flip(1) if self.flip else images
        return images * self.gain - self.offset


def build_network(
    backbone: str,
    split: str | None = None,
    weights: str = "pretrained",
    dim: int = 512,
    pooling: Pooling = "avg",
    resize: int | None = None,
    crop: int | None = None,
) -> tuple[EmbeddingNetwork, Preprocess]:
    """A network with its starting weights, and how its images must be prepared.

    ``weights`` is ``pretrained`` (the public ImageNet weights), ``none`` (random), or a file.
    ``resize`` and ``crop`` are in pixels; None takes the backbone's own size.
    """
    pretrained = {"pretrained": True, "none": False}.get(weights, weights)
    built = build_backbone(backbone, split, pretrained)
    return EmbeddingNetwork(built, dim, pooling), built.preprocess.sized(resize, crop)


@torch.inference_mode()
def embed_images(
    network: EmbeddingNetwork, store: ImageStore, device: torch.device
) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Embeddings of unit length of the images that could be decoded, and a mask (N,) of these."""
    training = network.training
    network.eval()
    preprocess = store.preprocess
    normalise = Normalise(preprocess).to(device)
    edge = round((preprocess.resize - preprocess.crop) / 2)  # the same as in Preprocess.pixels
    centre = slice(edge, edge + preprocess.crop)
    rows, decoded = [], np.zeros(len(store.split.paths), bool)
    with ThreadPoolExecutor(max(1, store.workers)) as threads:
        for start in range(0, len(decoded), _BATCH):
            indices = range(start, min(start + _BATCH, len(decoded)))
            images = list(threads.map(store.load_or_none, indices))
            pixels = [image[centre, centre] for image in images if image is not None]
            decoded[indices] = [image is not None for image in images]
            if pixels:
                batch = torch.from_numpy(np.stack(pixels)).to(device)
                with torch.autocast(device.type, enabled=device.type == "cuda"):
                    embeddings = network(normalise(batch))
                rows.append(F.normalize(embeddings.float(), dim=1).cpu())
    network.train(training)
    if not rows:
        raise CouceError("none of the images could be read")
    return torch.cat(rows).numpy(), decoded
