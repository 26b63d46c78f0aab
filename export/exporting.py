"""`couce export`: makes an ONNX file of a checkpoint, and compares both before it is written."""

import hashlib
import logging
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, get_args

import numpy as np
import onnx
from numpy.typing import NDArray

from couce.checkpoint import load, load_network
from couce.data import open_dataset
from couce.data.base import DataSet
from couce.data.demo import draw, examples
from couce.data.folders import image_files
from couce.errors import CouceError, unknown_name
from couce.export import certificate
from couce.export.comparison import MOST_LOST, Comparison, RetrievalSet, quantise
from couce.export.graph import Input, PlainModel, to_onnx
from couce.export.parity import Parity, as_input, check_parity
from couce.export.write import describe, serialise, write
from couce.models.info import Precision
from couce.preprocess import ImageError, ImageSource, Preprocess, open_image

log = logging.getLogger(__name__)

PARITY_IMAGES = 42  # one batch of the largest size, and a smaller second one
CALIBRATION_IMAGES = 256


class Exported(NamedTuple):
    path: Path
    parity: Parity
    lost: dict[str, float] | None  # how much of each metric is lost by fewer bits


def export(
    checkpoint: str | os.PathLike[str],
    model: str | Path = "model.onnx",
    *,
    input: str = "uint8",
    precision: str = "fp32",
    calibrate: str | Path | None = None,
    certify: bool = False,
    dataset: str | None = None,
    data: str | Path | None = None,
) -> Exported:
    """Writes a checkpoint, or the best one of a run, as a plain ONNX model: `couce export`.

    Args:
        checkpoint: a .pt file, or the result of :func:`couce.train.train`.
        model: the file to write.
        input: ``uint8`` (N, H, W, 3), or ``float`` (N, 3, H, W) with values from 0 to 1.
        precision: ``fp32``, ``fp16`` (for GPUs) or ``int8`` (for CPUs).
        calibrate: a folder of images from which int8 measures the ranges of its values. The default
            is the training half of the data set.
        certify: prove that nothing of the method is left in the model.
        dataset: the data set on which both are compared. The default is that of the training.
        data: the folder of this data set.
    """
    path = Path(checkpoint)
    if calibrate is not None and precision != "int8":
        raise CouceError(f"--calibrate is for int8, not for {precision}; leave it out")
    found = _dataset_of(path, dataset, data)
    labelled: RetrievalSet | None = None
    learn_from: tuple[Path, ...] = ()
    images: dict[str, ImageSource]
    if found is not None:
        step = max(1, len(found.test.paths) // PARITY_IMAGES)
        images = {str(path): path for path in found.test.paths[::step][:PARITY_IMAGES]}
        labelled = RetrievalSet(found.name, found.test.paths, found.test.labels)
        learn_from = found.train.paths
    else:
        log.info("Comparing on drawn images; choose others with --dataset and --data.")
        plan = examples(0.9, per_class=1, seed=0)[:PARITY_IMAGES]
        images = {f"drawn image {n}": draw(each) for n, each in enumerate(plan)}
    if calibrate is not None:
        learn_from = tuple(image_files(Path(calibrate)))
        if not learn_from:
            raise CouceError(
                f"there are no images in {calibrate}; give --calibrate a folder with images"
            )
    return write_model(
        path, Path(model), images, input, precision, learn_from, labelled, certified=certify
    )


def _dataset_of(checkpoint: Path, dataset: str | None, data: str | Path | None) -> DataSet | None:
    """The data set that the user names. Without a name that of the training, if it is found."""
    trained_on = load(checkpoint).get("data")
    try:
        if dataset is not None:
            return open_dataset(dataset, data)
        if isinstance(trained_on, dict) and trained_on:
            return open_dataset(**trained_on | ({"root": data} if data else {}))
    except (CouceError, OSError, TypeError) as error:
        if dataset or data:
            raise
        log.info("The data set of the training was not found (%s).", error)
    return None


def write_model(
    checkpoint: Path,
    target: Path,
    images: Mapping[str, ImageSource],
    input_kind: str = "uint8",
    precision: str = "fp32",
    calibrate: Sequence[Path] = (),
    labelled: RetrievalSet | None = None,
    certified: bool = False,
) -> Exported:
    """Writes ``target`` if its model computes the same as the checkpoint on ``images`` (by name).

    ``calibrate`` are the images for int8. ``labelled`` are those on which the loss of retrieval by
    fewer bits is measured.
    """
    _check_wishes(target, input_kind, precision, calibrate, certified)
    kind: Input = "float" if input_kind == "float" else "uint8"
    network, preprocess, content = load_network(checkpoint)
    model = PlainModel(network, preprocess, kind).eval()
    info = describe(content, preprocess, kind)
    proto = to_onnx(network, preprocess, kind)
    pixels = _pixels(images, preprocess)
    parity = check_parity(model, proto, np.stack(list(pixels.values())), list(pixels))
    log.info(
        f"{parity.images} images in batches of 1, 2, 7 and 32: cosine to torch at least"
        f" {parity.cosine:.6f}, the same neighbours"
    )
    written = plain = serialise(proto, info)
    lost = None
    if precision != "fp32":
        reduced = info.model_copy(update={"precision": precision})
        comparison = Comparison(plain, np.stack(list(pixels.values())), labelled)
        if precision == "fp16":
            written = serialise(to_onnx(network, preprocess, kind, half=True), reduced)
            lost = comparison(written, precision)
            if lost is not None and lost["R@1"] > MOST_LOST:
                raise CouceError(
                    f"fp16 loses {100 * lost['R@1']:.2f} points of R@1; nothing was written, choose"
                    " another --precision"
                )
        else:
            paths = {str(path): path for path in _spread(calibrate, CALIBRATION_IMAGES)}
            learned = _pixels(paths, preprocess)
            feeds = as_input(model, np.stack(list(learned.values())))
            written, lost = quantise(proto, feeds, reduced, comparison)
    certificates: dict[Path, str] = {}
    if certified:
        certificates = _certify(target, written, proto, content, preprocess, kind)
    write(target, written)
    for suffix in (".certificate.json", ".certificate.html"):
        path = target.with_suffix(suffix)
        if path in certificates:
            write(path, certificates[path].encode())
        else:
            path.unlink(missing_ok=True)  # the certificate of a model that was replaced
    return Exported(target, parity, lost)


def _check_wishes(
    target: Path, kind: str, precision: str, calibrate: Sequence[Path], certified: bool
) -> None:
    """Refuses wrong arguments before anything is computed."""
    if precision not in get_args(Precision):
        raise unknown_name("precision", precision, get_args(Precision))
    if kind not in get_args(Input):
        raise unknown_name("input", kind, get_args(Input))
    if precision == "int8" and not calibrate:
        raise CouceError(
            "int8 needs images to measure the ranges of its values; give a folder with --calibrate"
        )
    if certified and precision != "fp32":
        raise CouceError(
            f"the certificate is of the fp32 model, from which {precision} is made; use --certify"
            " with --precision fp32"
        )
    if target.suffix != ".onnx":
        raise CouceError(f"the name of a model must end in .onnx, and {target.name} does not")
    if not target.parent.is_dir():
        raise CouceError(f"there is no folder {target.parent} for {target.name}; make it first")


def _certify(
    target: Path,
    written: bytes,
    proto: onnx.ModelProto,
    content: dict[str, Any],
    preprocess: Preprocess,
    kind: Input,
) -> dict[Path, str]:
    rounds, batch = 40, 1
    with tempfile.TemporaryDirectory() as folder:
        rows = certificate.certify(
            target, proto, content, preprocess, kind, Path(folder), rounds, batch
        )
    sha256 = hashlib.sha256(written).hexdigest()
    *others, control = rows
    ratios = [row.ratio for row in others]
    log.info(
        f"certified: {len(others)} graphs of {len(rows[0].structure.nodes)} entries are identical;"
        f" time / base {min(ratios):.3f} to {max(ratios):.3f}, and for base itself, measured twice,"
        f" {control.ratio:.3f} ({control.low:.3f} to {control.high:.3f});"
        f" see {target.with_suffix('.certificate.html')}"
    )
    return {
        target.with_suffix(".certificate.json"): certificate.to_json(rows, sha256, batch, rounds),
        target.with_suffix(".certificate.html"): certificate.to_page(rows, sha256, batch, rounds),
    }


def _pixels(
    images: Mapping[str, ImageSource], preprocess: Preprocess
) -> dict[str, NDArray[np.uint8]]:
    """The pixels of the images that can be decoded, by name."""
    found = {}
    for name, image in images.items():
        try:
            found[name] = preprocess.pixels(open_image(image, shortest=preprocess.resize))
        except ImageError as error:
            log.info("left out: %s", error)
    if len(found) < 2:
        raise CouceError(
            "fewer than two images can be decoded, and comparing the models needs at least two;"
            " choose other images with --dataset or --calibrate"
        )
    return found


def _spread(paths: Sequence[Path], count: int) -> list[Path]:
    """``count`` of the paths, evenly spread from the first to the last."""
    step = max(1.0, len(paths) / count)
    return [paths[int(place * step)] for place in range(min(count, len(paths)))]
