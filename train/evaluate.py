"""Embedding a split and measuring retrieval on it."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from couce.backbones import build_backbone
from couce.errors import CouceError
from couce.metrics import retrieval_metrics
from couce.network import EmbeddingNetwork, Normalise
from couce.preprocess import Preprocess
from couce.train.images import ImageStore
from couce.train.settings import TrainSettings

_BATCH = 120


@torch.inference_mode()
def embed(
    network: EmbeddingNetwork, store: ImageStore, device: torch.device
) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Unit rows of the images that could be decoded, and which of the split these are (N,)."""
    training = network.training
    network.eval()
    preprocess = store.preprocess
    normalise = Normalise(preprocess).to(device)
    edge = round((preprocess.resize - preprocess.crop) / 2)  # as Preprocess.pixels
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


def measure(
    network: EmbeddingNetwork,
    store: ImageStore,
    device: torch.device,
    ks: Sequence[int] = (1, 2),
) -> dict[str, float]:
    """The five metrics on a split; images that cannot be decoded are left out."""
    embeddings, decoded = embed(network, store, device)
    return retrieval_metrics(embeddings, store.split.labels[decoded], ks)


def build_network(settings: TrainSettings) -> tuple[EmbeddingNetwork, Preprocess]:
    """The network of these settings with its starting weights, and what it is to be fed."""
    pretrained = {"pretrained": True, "none": False}.get(settings.weights, settings.weights)
    backbone = build_backbone(settings.backbone, settings.split, pretrained)
    preprocess = backbone.preprocess.sized(settings.resize, settings.crop)
    return EmbeddingNetwork(backbone, settings.dim, settings.pooling), preprocess
