"""`couce export`: from a checkpoint to one ONNX file, compared with the original before it is written."""

import hashlib
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, get_args

import numpy as np
import onnx
from numpy.typing import NDArray

from couce.checkpoint import load_network
from couce.cores import usable_cores
from couce.embedder import Embedder
from couce.errors import CouceError, unknown_name
from couce.export import certificate
from couce.export.graph import Input, PlainModel, to_onnx
from couce.export.parity import Parity, as_input, check_parity, open_session
from couce.export.precision import harm_by_layer, to_int8
from couce.export.write import describe, serialise, write
from couce.metrics import retrieval_metrics
from couce.preprocess import ImageSource, Preprocess, open_image

PARITY_IMAGES = 42  # enough for the largest batch and a part of another
CALIBRATION_IMAGES = 256
MOST_LOST = 0.005  # of R@1 by fewer bits, before layers are left as they were

Say = Callable[[str], None]


class Labelled(NamedTuple):
    """Images and their classes, to measure retrieval on."""

    name: str
    paths: Sequence[Path]
    labels: NDArray[np.intp]


class Exported(NamedTuple):
    path: Path
    parity: Parity
    lost: dict[str, float] | None  # per metric, by fewer bits


def export(
    checkpoint: Path,
    target: Path,
    images: Sequence[ImageSource],
    input_kind: str = "uint8",
    precision: str = "fp32",
    calibrate: Sequence[Path] = (),
    labelled: Labelled | None = None,
    certified: bool = False,
    say: Say = lambda _: None,
) -> Exported:
    """Writes ``target`` if the model in it does what the checkpoint's does on ``images``."""
    if precision not in ("fp32", "fp16", "int8"):
        raise unknown_name("precision", precision, ("fp32", "fp16", "int8"))
    if input_kind not in get_args(Input):
        raise unknown_name("input", input_kind, get_args(Input))
    kind: Input = "float" if input_kind == "float" else "uint8"
    if precision == "int8" and not calibrate:
        raise CouceError("int8 learns its ranges from images: give a folder with --calibrate")
    if not target.parent.is_dir():
        raise CouceError(f"there is no folder {target.parent} to write {target.name} to")
    network, preprocess, content = load_network(checkpoint)
    model = PlainModel(network, preprocess, kind).eval()
    info = describe(content, preprocess, kind)
    proto = to_onnx(network, preprocess, kind)
    parity = check_parity(model, proto, _pixels(images, preprocess), [str(i) for i in images])
    say(
        f"{parity.images} images in batches of 1, 2, 7 and 32: cosine to torch at least"
        f" {parity.cosine:.6f}, the same neighbours"
    )
    plain = serialise(proto, info)
    lost = None
    written = plain
    if precision != "fp32":
        reduced = info.model_copy(update={"precision": precision})
        if precision == "fp16":
            written = serialise(to_onnx(network, preprocess, kind, half=True), reduced)
            lost = _compare(plain, written, labelled, precision, say)
        else:
            feeds = as_input(model, _pixels(_spread(calibrate, CALIBRATION_IMAGES), preprocess))
            written, lost = _int8(proto, plain, feeds, reduced, labelled, say)
    if certified:
        _certify(target, written, proto, content, preprocess, kind, say)
    write(target, written)
    return Exported(target, parity, lost)


def _int8(
    proto: onnx.ModelProto,
    plain: bytes,
    feeds: NDArray[Any],
    info: Any,
    labelled: Labelled | None,
    say: Say,
) -> tuple[bytes, dict[str, float] | None]:
    """Quantised; where that costs more than MOST_LOST of R@1, without the layers that cause it."""
    skipped: list[str] = []
    worst: list[str] = []
    while True:
        written = serialise(to_int8(proto, feeds, skipped), info)
        lost = _compare(plain, written, labelled, "int8", say)
        if lost is None or lost["R@1"] <= MOST_LOST:
            return written, lost
        if not worst:
            say("looking for the layers that cause it, quantising one at a time")
            harm = harm_by_layer(proto, feeds[:32], feeds[:64], _run)
            worst = list(harm)
            listed = ", ".join(f"{layer} {value:.1e}" for layer, value in list(harm.items())[:4])
            say(f"1 - cosine by layer, the worst: {listed}")
        if len(skipped) == len(worst) - 1:
            raise CouceError(
                f"int8 loses {100 * lost['R@1']:.2f} points of R@1 with all but one layer skipped;"
                " calibrate with images like those that will be searched"
            )
        skipped = worst[: len(skipped) + 1]
        say(f"left in float32: {', '.join(skipped)}")


def _compare(
    plain: bytes, written: bytes, labelled: Labelled | None, precision: str, say: Say
) -> dict[str, float] | None:
    """Speed of both models, and what of each metric is lost; None without a labelled set."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "plain.onnx").write_bytes(plain)
        (Path(folder) / "written.onnx").write_bytes(written)
        one = Embedder(Path(folder) / "plain.onnx")
        other = Embedder(Path(folder) / "written.onnx")
    say(
        f"{precision}: {len(written) / 1e6:.1f} MB instead of {len(plain) / 1e6:.1f},"
        f" {_speed(one, other):.2f} times the images/s of fp32 on {one.provider}"
    )
    if labelled is None:
        say("no labelled set to measure retrieval on: give one with --dataset")
        return None
    before, after = (
        retrieval_metrics(each.embed(labelled.paths), labelled.labels) for each in (one, other)
    )
    listed = ", ".join(
        f"{name} {100 * before[name]:.2f} -> {100 * after[name]:.2f}" for name in before
    )
    say(f"{labelled.name}, {len(labelled.paths)} images: {listed}")
    return {name: before[name] - after[name] for name in before}


def _speed(one: Embedder, other: Embedder, rounds: int = 5, batch: int = 16) -> float:
    """Images/s of ``other`` beside ``one``, taking turns."""
    crop = one.preprocess.crop
    pixels = np.random.default_rng(0).integers(0, 256, (batch, crop, crop, 3), np.uint8)
    times: dict[Embedder, list[float]] = {one: [], other: []}
    for turn in range(rounds + 1):
        for each in (one, other):
            start = time.perf_counter()
            each.run(pixels)
            if turn:
                times[each].append(time.perf_counter() - start)
    return float(np.median(times[one]) / np.median(times[other]))


def _run(proto: onnx.ModelProto, feeds: NDArray[Any]) -> NDArray[np.float32]:
    session = open_session(proto, usable_cores())
    parts = [session.run(None, {"image": feeds[i : i + 16]})[0] for i in range(0, len(feeds), 16)]
    return np.concatenate(parts)


def _certify(
    target: Path,
    written: bytes,
    proto: onnx.ModelProto,
    content: dict[str, Any],
    preprocess: Preprocess,
    kind: Input,
    say: Say,
) -> None:
    rounds, batch = 40, 1
    with tempfile.TemporaryDirectory() as folder:
        rows = certificate.certify(
            target, proto, content, preprocess, kind, Path(folder), rounds, batch, say
        )
    sha256 = hashlib.sha256(written).hexdigest()
    for suffix, text in (
        (".certificate.json", certificate.to_json(rows, sha256, batch, rounds)),
        (".certificate.html", certificate.to_page(rows, sha256, batch, rounds)),
    ):
        write(target.with_suffix(suffix), text.encode())
    shares = [row.ratio for row in rows]
    say(
        f"certified: {len(rows)} graphs of {len(rows[0].structure.nodes)} entries are identical; time"
        f" beside base {min(shares):.3f} to {max(shares):.3f}; see"
        f" {target.with_suffix('.certificate.html')}"
    )


def _pixels(images: Sequence[ImageSource], preprocess: Preprocess) -> NDArray[np.uint8]:
    return np.stack(
        [preprocess.pixels(open_image(image, shortest=preprocess.resize)) for image in images]
    )


def _spread(paths: Sequence[Path], count: int) -> list[Path]:
    """``count`` of them, evenly from first to last."""
    step = max(1.0, len(paths) / count)
    return [paths[int(place * step)] for place in range(min(count, len(paths)))]
