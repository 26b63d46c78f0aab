"""`couce analyze gradcam`: which parts of an image determine its embedding.

Paper, Fig. attention and odba_visualization. The maps are Grad-CAM (Selvaraju et al., 2017) of the
target ⟨m, v⟩, where m is the embedding and v is a fixed direction. For the maps "m", v is the mean
embedding of the other images of the class, which a search should find. For the maps "z", v is what
ODBA's dictionary gives for m, which ODBA takes for background. If there are masks of the objects,
the share of the heat on the object puts the map into a number.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from matplotlib import colormaps
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from couce.data.base import Split
from couce.errors import CouceError, unknown_name
from couce.masks import Masks, open_masks
from couce.network import EmbeddingNetwork
from couce.preprocess import open_image
from couce.report.plots import Cell, sheet
from couce.report.section import Section, Table
from couce.train.figures.runs import TrainedRun, embed_split, load_images, sample


def heat_maps(network: EmbeddingNetwork, images: Tensor, directions: Tensor, layer: str) -> Tensor:
    """Grad-CAM (N, H', W') of ⟨m, v⟩ for images (N, 3, H, W) and directions v (N, d).

    The result is the sum of the feature maps, each weighted by the mean of its gradient, with
    negative values set to zero. ``layer`` says which feature maps: those where MSRCI intervenes
    (``split``) or those at the end of the backbone (``last``).
    """
    backbone = network.backbone
    with torch.no_grad():
        maps = backbone.stage1(images) if layer == "split" else backbone(images)
    with torch.enable_grad():
        maps.requires_grad_(True)
        m = network.tail(maps) if layer == "split" else network.embed_maps(maps)
        target = (m * directions).sum()
        (gradient,) = torch.autograd.grad(target, maps)
    weights = gradient.mean(dim=(2, 3), keepdim=True)
    return F.relu((weights * maps.detach()).sum(dim=1))


def looking_at(network: EmbeddingNetwork, pixels: int, layer: str) -> tuple[float, float]:
    """The pixel on which a feature is centred, as an offset (down, right) in pixels.

    The offset is relative to the row and column of the feature times the stride. The centre is not
    the middle of the feature's square: strided convolutions with padding move it up and left by as
    much as half a stride, which is visible on small maps. It is measured as the centre of the
    squared gradient of the middle feature, for images of noise.
    """
    device = next(network.parameters()).device
    noise = torch.randn(8, 3, pixels, pixels, generator=torch.Generator().manual_seed(0)).to(device)
    with torch.enable_grad():
        noise.requires_grad_(True)
        backbone = network.backbone
        maps = backbone.stage1(noise) if layer == "split" else backbone(noise)
        middle = maps.shape[-1] // 2
        (gradient,) = torch.autograd.grad(maps[:, :, middle, middle].sum(), noise)
    weight = gradient.double().square().sum(dim=(0, 1)).cpu()  # (H, W)
    stride = pixels / maps.shape[-1]
    places = torch.arange(pixels, dtype=torch.float64)
    total = max(float(weight.sum()), 1e-300)
    down = float((weight.sum(dim=1) * places).sum()) / total - stride * middle
    right = float((weight.sum(dim=0) * places).sum()) / total - stride * middle
    return min(max(down, 0.0), stride), min(max(right, 0.0), stride)


def enlarged(maps: Tensor, pixels: int, offset: tuple[float, float]) -> Tensor:
    """Maps (N, h, w) at the size of the image, with each value where its feature is centred."""
    axes = []
    for side, shift in zip(maps.shape[1:], offset, strict=True):
        place = (torch.arange(pixels, dtype=torch.float64) - shift) * side / pixels
        axes.append((2 * place / max(side - 1, 1) - 1).to(maps))  # in grid_sample's coordinates
    grid = torch.stack(torch.meshgrid(axes[1], axes[0], indexing="xy"), dim=-1)
    grid = grid.expand(len(maps), -1, -1, -1)
    large = F.grid_sample(maps.unsqueeze(1), grid, padding_mode="border", align_corners=True)
    return large.squeeze(1)


@torch.no_grad()
def run_heat(
    run: TrainedRun, shown: Split, reference: Split, layer: str
) -> dict[str, NDArray[np.float32]]:
    """Heat maps "m" of ``shown``, and "z" if the run has a dictionary, at the size of the crops.

    The class means come from the images of ``reference``.
    """
    rows, known = embed_split(run, reference)
    found: dict[str, list[Tensor]] = {"m": []}
    crop = run.preprocess.crop
    offset = looking_at(run.network, crop, layer)
    for images, indices in load_images(run, shown):
        m = run.network(images)
        targets = {
            "m": _class_means(F.normalize(m, dim=1).cpu().numpy(), indices, shown, rows, known)
        }
        if run.objective.odba is not None:
            targets["z"] = run.objective.odba.attend(m.cpu())
        for kind, direction in targets.items():
            unit = F.normalize(direction, dim=1).to(run.device)
            maps = heat_maps(run.network, images, unit, layer)
            found.setdefault(kind, []).append(enlarged(maps, crop, offset).cpu())
    return {kind: torch.cat(parts).numpy() for kind, parts in found.items()}


def _class_means(
    own: NDArray[np.float32],
    indices: Sequence[int],
    shown: Split,
    rows: NDArray[np.float32],
    known: Split,
) -> Tensor:
    """For each shown image the mean embedding of the others of its class.

    If there are no others, it is the embedding of the image itself.
    """
    means = []
    for row, index in zip(own, indices, strict=True):
        label = shown.names[shown.labels[index]]
        others = np.array(
            [
                known.names[code] == label and path != shown.paths[index]
                for path, code in zip(known.paths, known.labels, strict=True)
            ],
            bool,
        )
        means.append(rows[others].mean(axis=0) if others.any() else row)
    return torch.from_numpy(np.stack(means))


def on_object(heat: NDArray[np.float32], mask: NDArray[np.float64]) -> float:
    """The share of the heat that lies on the object.

    >>> on_object(np.array([[1.0, 0.0], [3.0, 0.0]]), np.array([[1.0, 1.0], [0.0, 0.0]]))
    0.25
    """
    total = float(heat.sum())
    return float((heat * mask).sum()) / total if total > 0 else float("nan")


def gradcam(
    runs: Sequence[TrainedRun],
    paths: Sequence[Path] = (),
    count: int = 6,
    images: int = 400,
    layer: str = "split",
    masks: str | Path | None = None,
    mask_model: str | Path | None = None,
) -> Section:
    """Heat maps of the test images in ``paths``, or of ``count`` test images if it is empty.

    The shares of the heat are measured on about ``images`` test images.
    """
    if layer not in ("last", "split"):
        raise unknown_name("layer", layer, ("last", "split"))
    run = runs[0]
    reference = sample(run.data.test, images, images // 4)
    chosen = _chosen(run.data.test, reference, paths, count)
    shapes = open_masks(run.data, masks, mask_model)
    heads, columns, shares = ["image"], [], {}
    drawn = [run.preprocess.pixels(open_image(path)) for path in chosen.paths]
    columns.append([Cell(p, chosen.names[c]) for p, c in zip(drawn, chosen.labels, strict=True)])
    for each in runs:
        shares[each.name] = _shares(each, reference, shapes, layer)
        heats = run_heat(each, chosen, reference, layer)
        pictures = [each.preprocess.pixels(open_image(path)) for path in chosen.paths]
        for kind, heat in heats.items():
            heads.append(f"{kind}: {each.name}" if len(runs) > 1 else kind)
            columns.append(
                [
                    Cell(overlay(p, h), _percent(_object_share(each, path, h, shapes)))
                    for p, h, path in zip(pictures, heat, chosen.paths, strict=True)
                ]
            )
    object_area = shares[run.name]["area"]
    return Section(
        name="gradcam",
        title="Where embeddings come from",
        about=(
            f"Grad-CAM at the {'end of the backbone' if layer == 'last' else 'split'}. The maps m"
            " show what moves the embedding towards the other images of its class. The maps z show"
            " what moves it towards the output of ODBA's dictionary, which the paper takes for"
            " background. Below each map is the share of its heat on the object (masks:"
            f" {shapes.kind}). Objects cover {object_area:.0%} of the images. Evenly spread heat"
            " would have this share."
        ),
        tables=[
            Table(
                title=(
                    f"Share of the heat on the object, mean over {len(reference.paths)} test images"
                ),
                columns=("run", "m", "z", "even"),
                rows=tuple(
                    (name, _percent(s["m"]), _percent(s.get("z")), _percent(s["area"]))
                    for name, s in shares.items()
                ),
            )
        ],
        pictures=[
            (
                sheet(list(zip(*columns, strict=True)), heads, side=112),
                "Warm colours show the parts that count. Each map is scaled to its own maximum.",
            )
        ],
        values={
            "images": [str(path) for path in chosen.paths],
            "masks": shapes.kind,
            "shares": shares,
        },
    )


def _chosen(test: Split, reference: Split, paths: Sequence[Path], count: int) -> Split:
    if not paths:
        places = np.linspace(0, len(reference.paths) - 1, min(count, len(reference.paths)))
        keep = np.zeros(len(reference.paths), bool)
        keep[places.round().astype(int)] = True
        return reference.select(keep)
    wanted = {path.resolve() for path in paths}
    keep = np.array([path.resolve() in wanted for path in test.paths])
    if keep.sum() < len(wanted):
        known = {path.resolve() for path in test.paths}
        missing = next(path for path in paths if path.resolve() not in known)
        raise CouceError(
            f"{missing} is not an image of the test half; give --image a path of the data set"
        )
    return test.select(keep)


def _shares(run: TrainedRun, reference: Split, shapes: Masks, layer: str) -> dict[str, float]:
    heats = run_heat(run, reference, reference, layer)
    areas = [_crop_mask(run, path, shapes).mean() for path in reference.paths]
    found = {"area": float(np.mean(areas))}
    for kind, heat in heats.items():
        each = [
            _object_share(run, path, h, shapes)
            for path, h in zip(reference.paths, heat, strict=True)
        ]
        found[kind] = float(np.nanmean(each)) if np.isfinite(each).any() else float("nan")
    return found


def _object_share(run: TrainedRun, path: Path, heat: NDArray[np.float32], shapes: Masks) -> float:
    return on_object(heat, _crop_mask(run, path, shapes))


def _crop_mask(run: TrainedRun, path: Path, shapes: Masks) -> NDArray[np.float64]:
    """The mask (crop, crop) of an image, resized and cropped like the input of the network."""
    image = open_image(path, shortest=run.preprocess.resize)
    return run.preprocess.pixels(shapes.of(path, image).convert("RGB"))[..., 0] / 255.0


def overlay(pixels: NDArray[np.uint8], heat: NDArray[np.float32]) -> Image.Image:
    """The image in grey under the heat map, which is scaled to its own maximum."""
    scaled = heat / max(float(heat.max()), 1e-12)
    warm = colormaps["turbo"](scaled)[..., :3] * 255
    grey = pixels.mean(axis=2, keepdims=True)
    return Image.fromarray((0.45 * grey + 0.55 * warm).astype(np.uint8))


def _percent(value: float | None) -> str:
    return "" if value is None or not np.isfinite(value) else f"{value:.0%}"
