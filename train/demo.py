"""What `couce demo` runs: the road as far as it is built, on the embedded data set."""

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image

from couce.backbones import build_backbone
from couce.losses import build_loss
from couce.method import CouCE, MethodSettings
from couce.metrics import retrieval_metrics
from couce.network import EmbeddingNetwork
from couce.preprocess import Preprocess, open_image
from couce.train.data.demo import PIXELS, write_demo

OFF = {"weight": 0.0}
METHODS = {
    "base loss": MethodSettings.parse({"odba": OFF, "msrci": OFF, "covariance": OFF}),
    "CouCE": MethodSettings(),
}
CLASSES_A_BATCH, IMAGES_A_CLASS = 30, 4

Say = Callable[[str], None]


class Half:
    """One half of the set in memory: pixels before cropping (N, H, W, 3), labels (N,)."""

    def __init__(self, folder: Path, preprocess: Preprocess) -> None:
        self.paths = sorted(folder.glob("*/*.png"))
        self.pixels = np.stack([np.asarray(preprocess.resized(open_image(p))) for p in self.paths])
        self.names, self.labels = np.unique(
            [path.parent.name for path in self.paths], return_inverse=True
        )


def run_demo(folder: Path, epochs: int, seed: int, say: Say) -> dict[str, dict[str, float]]:
    """Draws the pictures, trains with and without CouCE, and measures both on unseen classes."""
    start = time.perf_counter()
    pictures = write_demo(folder / "pictures")
    _contact_sheet(pictures, folder / "pictures.png")
    say(
        f"64 classes of drawn pictures, in {time.perf_counter() - start:.0f} s: {folder}/pictures.png"
    )
    preprocess = build_backbone("tiny").preprocess
    train, test = (Half(pictures / half, preprocess) for half in ("train", "test"))

    results = {}
    for name, settings in METHODS.items():
        start = time.perf_counter()
        say(f"Training with {name}:")
        network = fit(train, preprocess, settings, epochs, seed, say)
        results[name] = retrieval_metrics(embed(network, test, preprocess), test.labels)
        say(f"  done in {time.perf_counter() - start:.0f} s")
    return results


def fit(
    train: Half, preprocess: Preprocess, settings: MethodSettings, epochs: int, seed: int, say: Say
) -> EmbeddingNetwork:
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    network = EmbeddingNetwork(build_backbone("tiny"), dim=128)
    network.to(memory_format=torch.channels_last)
    objective = CouCE(build_loss("proxy-an", num_classes=len(train.names), dim=128), settings)
    optimiser = torch.optim.Adam(
        [
            {"params": network.parameters(), "lr": 1e-3, "weight_decay": 1e-4},
            {"params": objective.parameters(), "lr": 1e-2},
        ]
    )
    steps = len(train.labels) // (CLASSES_A_BATCH * IMAGES_A_CLASS)
    for epoch in range(epochs):
        for _ in range(steps):
            batch = _balanced_batch(train.labels, rng)
            images = _tensor(preprocess, _augmented(train.pixels[batch], preprocess.crop, rng))
            labels = torch.from_numpy(train.labels[batch])
            m, m_tilde = network.views(images, objective.intervention)
            out = objective(m, labels, m_tilde)
            optimiser.zero_grad()
            out.total.backward()
            optimiser.step()
        parts = "  ".join(f"{name} {part.item():.3f}" for name, part in out.parts.items())
        say(f"  epoch {epoch + 1}/{epochs}  {parts}")
    return network


@torch.inference_mode()
def embed(network: EmbeddingNetwork, half: Half, preprocess: Preprocess) -> NDArray[np.float32]:
    network.eval()
    edge = (half.pixels.shape[1] - preprocess.crop) // 2
    centre = half.pixels[:, edge : edge + preprocess.crop, edge : edge + preprocess.crop]
    rows = [network(_tensor(preprocess, centre[i : i + 240])) for i in range(0, len(centre), 240)]
    return F.normalize(torch.cat(rows), dim=1).numpy()


def _tensor(preprocess: Preprocess, pixels: NDArray[np.uint8]) -> torch.Tensor:
    images = torch.from_numpy(preprocess.normalise(pixels))
    return images.to(memory_format=torch.channels_last)


def _balanced_batch(labels: NDArray[np.intp], rng: np.random.Generator) -> NDArray[np.intp]:
    classes = rng.permutation(labels.max() + 1)[:CLASSES_A_BATCH]
    return np.concatenate(
        [rng.choice(np.flatnonzero(labels == c), IMAGES_A_CLASS, replace=False) for c in classes]
    )


def _augmented(pixels: NDArray[np.uint8], crop: int, rng: np.random.Generator) -> NDArray[np.uint8]:
    """A random crop of each picture, mirrored or not."""
    room = pixels.shape[1] - crop
    corners = rng.integers(0, room + 1, (len(pixels), 2))
    crops = np.stack(
        [p[y : y + crop, x : x + crop] for p, (y, x) in zip(pixels, corners, strict=True)]
    )
    mirrored = rng.random(len(crops)) < 0.5
    crops[mirrored] = crops[mirrored, :, ::-1]
    return crops


def _contact_sheet(pictures: Path, target: Path) -> None:
    """A row for every other class, the training half on the left."""
    gap = PIXELS + 2
    sheet = Image.new("RGB", (10 * gap, 16 * gap), "white")
    for side, half in enumerate(("train", "test")):
        for row, folder in enumerate(sorted((pictures / half).iterdir())[::2]):
            for column, path in enumerate(sorted(folder.iterdir())[:5]):
                sheet.paste(open_image(path), ((5 * side + column) * gap, row * gap))
    sheet.save(target)
