"""`couce export`: from a checkpoint to one ONNX file, compared with the original before it is written."""

import hashlib
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
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
from couce.model_info import ModelInfo, Precision
from couce.preprocess import ImageError, ImageSource, Preprocess, open_image

PARITY_IMAGES = 42  # enough for the largest batch and a part of another
CALIBRATION_IMAGES = 256
MOST_LOST = 0.005  # of R@1 by fewer bits, before layers are left as they were

LEAST_COSINE = 0.95  # of any image's embedding in fewer bits; below it the model is another

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
    images: Mapping[str, ImageSource],
    input_kind: str = "uint8",
    precision: str = "fp32",
    calibrate: Sequence[Path] = (),
    labelled: Labelled | None = None,
    certified: bool = False,
    say: Say = lambda _: None,
) -> Exported:
    """Writes ``target`` if the model in it does what the checkpoint's does on ``images``, by name."""
    _check_wishes(target, input_kind, precision, calibrate, certified)
    kind: Input = "float" if input_kind == "float" else "uint8"
    network, preprocess, content = load_network(checkpoint)
    model = PlainModel(network, preprocess, kind).eval()
    info = describe(content, preprocess, kind)
    proto = to_onnx(network, preprocess, kind)
    pixels = _pixels(images, preprocess, say)
    parity = check_parity(model, proto, np.stack(list(pixels.values())), list(pixels))
    say(
        f"{parity.images} images in batches of 1, 2, 7 and 32: cosine to torch at least"
        f" {parity.cosine:.6f}, the same neighbours"
    )
    written = plain = serialise(proto, info)
    lost = None
    if precision != "fp32":
        reduced = info.model_copy(update={"precision": precision})
        comparison = Comparison(plain, np.stack(list(pixels.values())), labelled, say)
        if precision == "fp16":
            written = serialise(to_onnx(network, preprocess, kind, half=True), reduced)
            lost = comparison(written, precision)
            if lost is not None and lost["R@1"] > MOST_LOST:
                raise CouceError(
                    f"fp16 loses {100 * lost['R@1']:.2f} points of R@1; nothing was written"
                )
        else:
            paths = {str(path): path for path in _spread(calibrate, CALIBRATION_IMAGES)}
            learned = _pixels(paths, preprocess, say)
            feeds = as_input(model, np.stack(list(learned.values())))
            written, lost = _int8(proto, feeds, reduced, comparison, say)
    certificates: dict[Path, str] = {}
    if certified:
        certificates = _certify(target, written, proto, content, preprocess, kind, say)
    write(target, written)
    for suffix in (".certificate.json", ".certificate.html"):
        path = target.with_suffix(suffix)
        if path in certificates:
            write(path, certificates[path].encode())
        else:
            path.unlink(missing_ok=True)  # that of a model which is no longer here
    return Exported(target, parity, lost)


def _check_wishes(
    target: Path, kind: str, precision: str, calibrate: Sequence[Path], certified: bool
) -> None:
    """Before anything is computed."""
    if precision not in get_args(Precision):
        raise unknown_name("precision", precision, get_args(Precision))
    if kind not in get_args(Input):
        raise unknown_name("input", kind, get_args(Input))
    if precision == "int8" and not calibrate:
        raise CouceError("int8 learns its ranges from images: give a folder with --calibrate")
    if certified and precision != "fp32":
        raise CouceError(
            f"a certificate is of the fp32 model, from which {precision} is made; export that with"
            " --certify"
        )
    if target.suffix != ".onnx":
        raise CouceError(f"a model is called something.onnx, not {target.name}")
    if not target.parent.is_dir():
        raise CouceError(f"there is no folder {target.parent} to write {target.name} to")


def _int8(
    proto: onnx.ModelProto,
    feeds: NDArray[Any],
    info: ModelInfo,
    comparison: Callable[[bytes, str], dict[str, float] | None],
    say: Say,
) -> tuple[bytes, dict[str, float] | None]:
    """Quantised; where that costs more than MOST_LOST of R@1, without the layers that cause it."""
    skipped: list[str] = []
    worst: list[str] = []
    while True:
        written = serialise(to_int8(proto, feeds, skipped), info)
        lost = comparison(written, "int8")
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


class Comparison:
    """Models of fewer bits beside the plain one: embeddings, speed, and retrieval."""

    def __init__(
        self, plain: bytes, pixels: NDArray[np.uint8], labelled: Labelled | None, say: Say
    ) -> None:
        self._plain, self._size = _opened(plain), len(plain)
        self._pixels, self._labelled, self._say = pixels, labelled, say
        self._rows = self._plain.run(pixels)
        self._before: dict[str, float] | None = None

    def __call__(self, model: bytes, precision: str) -> dict[str, float] | None:
        """What of each metric is lost; None without a labelled set. Another model is an error."""
        reduced = _opened(model)
        cosines = (reduced.run(self._pixels) * self._rows).sum(axis=1)
        if cosines.min() < LEAST_COSINE:
            raise CouceError(
                f"in {precision} an embedding has a cosine of {cosines.min():.4f} to that in fp32,"
                f" and {LEAST_COSINE} is the least allowed; nothing was written"
            )
        self._say(
            f"{precision}: {len(model) / 1e6:.1f} MB instead of {self._size / 1e6:.1f},"
            f" {_speed(self._plain, reduced):.2f} times the images/s of fp32 on"
            f" {reduced.provider}, cosine to fp32 at least {cosines.min():.4f}"
        )
        if self._labelled is None:
            self._say("no labelled set to measure retrieval on: give one with --dataset")
            return None
        before = self._before = self._before or _measure(self._plain, self._labelled)
        after = _measure(reduced, self._labelled)
        listed = ", ".join(
            f"{name} {100 * before[name]:.2f} -> {100 * after[name]:.2f}" for name in before
        )
        self._say(f"{self._labelled.name}, {len(self._labelled.paths)} images: {listed}")
        return {name: before[name] - after[name] for name in before}


def _opened(model: bytes) -> Embedder:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        path.write_bytes(model)
        return Embedder(path)


def _measure(embedder: Embedder, labelled: Labelled) -> dict[str, float]:
    """Of the images that can be read."""
    found = [
        (row, label)
        for row, label in zip(embedder.stream(labelled.paths), labelled.labels, strict=True)
        if not isinstance(row, ImageError)
    ]
    rows, labels = zip(*found, strict=True)
    return retrieval_metrics(np.stack(rows), np.array(labels))


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
) -> dict[Path, str]:
    rounds, batch = 40, 1
    with tempfile.TemporaryDirectory() as folder:
        rows = certificate.certify(
            target, proto, content, preprocess, kind, Path(folder), rounds, batch, say
        )
    sha256 = hashlib.sha256(written).hexdigest()
    *others, control = rows
    ratios = [row.ratio for row in others]
    say(
        f"certified: {len(others)} graphs of {len(rows[0].structure.nodes)} entries are identical;"
        f" time beside base {min(ratios):.3f} to {max(ratios):.3f}, of base beside itself"
        f" {control.ratio:.3f} ({control.low:.3f} to {control.high:.3f});"
        f" see {target.with_suffix('.certificate.html')}"
    )
    return {
        target.with_suffix(".certificate.json"): certificate.to_json(rows, sha256, batch, rounds),
        target.with_suffix(".certificate.html"): certificate.to_page(rows, sha256, batch, rounds),
    }


def _pixels(
    images: Mapping[str, ImageSource], preprocess: Preprocess, say: Say
) -> dict[str, NDArray[np.uint8]]:
    """Those that can be read, by name."""
    found = {}
    for name, image in images.items():
        try:
            found[name] = preprocess.pixels(open_image(image, shortest=preprocess.resize))
        except ImageError as error:
            say(f"left out: {error}")
    if len(found) < 2:
        raise CouceError("there are too few images that can be read to compare the models on")
    return found


def _spread(paths: Sequence[Path], count: int) -> list[Path]:
    """``count`` of them, evenly from first to last."""
    step = max(1.0, len(paths) / count)
    return [paths[int(place * step)] for place in range(min(count, len(paths)))]
