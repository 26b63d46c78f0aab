"""Embeds images with an ONNX model in onnxruntime, without torch."""

import copy
import hashlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from couce.errors import CouceError, unknown_name
from couce.machine.cores import usable_cores
from couce.machine.libraries import import_library
from couce.models.info import ModelInfo
from couce.models.scan import refuse_external_data
from couce.preprocess import (
    IMAGENET,
    MAX_PIXELS,
    ImageError,
    ImageSource,
    Preprocess,
    open_image,
)

# `auto` tries them in this order.
PROVIDERS = {
    "cuda": "CUDAExecutionProvider",
    "tensorrt": "TensorrtExecutionProvider",
    "cpu": "CPUExecutionProvider",
}

# An image, or a function that returns one. The function is called in the thread that decodes.
Source = ImageSource | Callable[[], ImageSource]


class Embedder:
    """An ONNX embedding model that embeds images.

    ``Embedder("model.onnx").embed(["bird.jpg", "car.png"])`` gives two embeddings of unit length,
    as an array (2, d).

    Args:
        model: the ONNX file. A file that is not a plain ONNX model is a :class:`CouceError`.
        provider: ``auto`` (CUDA or TensorRT where they work, otherwise the CPU), ``cuda``,
            ``tensorrt`` or ``cpu``. A provider other than ``auto`` that does not work is an error.
        threads: how many threads the model uses, and how many decode images. The default is the
            number of cores of this process.
        batch: how many images go through the model at once.
        preprocess: how images are prepared for a model that does not describe this itself. It must
            not be given for a model of CouCE, which does.
        max_pixels: images with more pixels are refused before they are decoded.

    Attributes:
        info: the description that CouCE stored in the model; None for other models.
        hash: the sha256 of the file, by which an index recognises its model.
        dim: the length of an embedding.
        provider: where the model really runs: ``cuda``, ``tensorrt`` or ``cpu``.
        fixed_batch: the only batch size that the model takes; None if it takes any.
    """

    def __init__(
        self,
        model: str | Path,
        *,
        provider: str = "auto",
        threads: int | None = None,
        batch: int = 32,
        preprocess: Preprocess | None = None,
        max_pixels: int = MAX_PIXELS,
    ) -> None:
        self.path = Path(model)
        if batch < 1 or (threads is not None and threads < 1):
            raise CouceError(f"batch and threads must be at least 1, not {batch} and {threads}")
        self.threads = threads or usable_cores()
        self.batch = batch
        self.max_pixels = max_pixels
        content = read_model(self.path)
        self.hash = hashlib.sha256(content).hexdigest()
        self.provider, self._session = open_session(content, self.path, provider, self.threads)
        try:
            self.info = ModelInfo.from_metadata(self._session.get_modelmeta().custom_metadata_map)
            self.preprocess = _preprocessing(self.info, preprocess)
            self._feed, self.fixed_batch = _feeder(self._session, self.info, self.preprocess)
            self._input = self._session.get_inputs()[0].name
            self._output, self.dim = _output(self._session)
            if self.info is not None and self.info.dim != self.dim:
                raise CouceError(
                    f"it gives embeddings of {self.dim} dimensions, but its description says"
                    f" {self.info.dim}"
                )
        except UnicodeDecodeError:
            raise CouceError(f"{self.path} cannot be used: it contains damaged names") from None
        except CouceError as error:
            raise CouceError(f"{self.path} cannot be used: {error}") from None

    def with_threads(self, threads: int) -> "Embedder":
        """A second embedder with the same model and another number of threads."""
        content = read_model(self.path)
        if hashlib.sha256(content).hexdigest() != self.hash:
            raise CouceError(f"{self.path} was replaced since it was opened; open it again")
        other = copy.copy(self)
        other.threads = threads
        other.provider, other._session = open_session(content, self.path, self.provider, threads)
        return other

    def embed(self, sources: Iterable[Source]) -> NDArray[np.float32]:
        """The embeddings (n, d) of unit length, in the order of ``sources``.

        An image that cannot be decoded is an :class:`ImageError`.
        """
        rows = []
        for row in self.stream(sources):
            if isinstance(row, ImageError):
                raise row
            rows.append(row)
        return np.stack(rows) if rows else np.empty((0, self.dim), np.float32)

    def stream(self, sources: Iterable[Source]) -> Iterator[NDArray[np.float32] | ImageError]:
        """For each source in turn its embedding (d,) of unit length, or the error of the image.

        Sources are taken when they are needed, at most two batches ahead.
        """
        waiting: deque[Future[NDArray[np.uint8] | ImageError]] = deque()
        left = iter(sources)
        with ThreadPoolExecutor(self.threads, "decode") as pool:
            try:
                while True:
                    wanted = 2 * self.batch - len(waiting)
                    waiting.extend(
                        pool.submit(self._decode_or_error, s) for s in islice(left, wanted)
                    )
                    if not waiting:
                        return
                    taken = [waiting.popleft() for _ in range(min(self.batch, len(waiting)))]
                    found = [future.result() for future in taken]
                    pixels = [each for each in found if not isinstance(each, ImageError)]
                    rows = iter(self.run(np.stack(pixels)) if pixels else ())
                    for each in found:
                        yield each if isinstance(each, ImageError) else next(rows)
            finally:
                pool.shutdown(wait=False, cancel_futures=True)

    def decode(self, source: Source) -> NDArray[np.uint8]:
        """The RGB pixels (crop, crop, 3) of an image, as :meth:`run` takes them."""
        if callable(source):
            source = source()
        shortest = self.preprocess.resize
        return self.preprocess.pixels(open_image(source, self.max_pixels, shortest))

    def _decode_or_error(self, source: Source) -> NDArray[np.uint8] | ImageError:
        try:
            return self.decode(source)
        except ImageError as error:
            return error

    def run(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        """The embeddings (N, d) of unit length of decoded images (N, crop, crop, 3).

        All images form one batch, unless the model has a fixed batch size.
        """
        size = self.fixed_batch or len(pixels)
        rows = []
        for start in range(0, len(pixels), size):
            part = pixels[start : start + size]
            short = size - len(part) if self.fixed_batch else 0
            padded = np.concatenate([part, np.repeat(part[-1:], short, axis=0)]) if short else part
            rows.append(self._run_once(self._feed(padded))[: len(part)])
        found = np.concatenate(rows).astype(np.float32, copy=False)
        lengths = np.linalg.norm(found, axis=1, keepdims=True)
        if not np.all(np.isfinite(lengths) & (lengths > 0)):
            raise CouceError(f"{self.path} gives embeddings that are zero or not finite numbers")
        return found / lengths

    def _run_once(self, feed: NDArray[Any]) -> NDArray[Any]:
        try:
            (output,) = self._session.run([self._output], {self._input: feed})
        # The exceptions of onnxruntime have no base class of their own.
        except Exception as error:
            raise CouceError(
                f"{self.path} fails on {len(feed)} images: {_first_line(error)}"
            ) from error
        if output.shape != (len(feed), self.dim):
            raise CouceError(
                f"{self.path} gives an array {output.shape} for {len(feed)} images, instead of"
                f" {(len(feed), self.dim)}"
            )
        return output


class Session(Protocol):
    """The part of an onnxruntime session that says where it runs."""

    def get_providers(self) -> list[str]: ...


_S = TypeVar("_S", bound=Session)


def open_on(
    wanted: str, available: Sequence[str], open_session: Callable[[list[str]], _S]
) -> tuple[str, _S]:
    """The short name of a provider that works, and a session on it.

    ``available`` are the providers that onnxruntime was built with. Not all of them need to work:
    where CUDA is missing, a session on CUDA silently runs on the CPU. So each session is asked.
    """
    if wanted != "auto" and wanted not in PROVIDERS:
        raise unknown_name("provider", wanted, ["auto", *PROVIDERS])
    for name in PROVIDERS if wanted == "auto" else [wanted]:
        provider = PROVIDERS[name]
        if provider not in available:
            continue
        # Operators that TensorRT cannot run go to CUDA, and those that CUDA cannot run to the CPU.
        order = [provider, *([PROVIDERS["cuda"]] if name == "tensorrt" else []), PROVIDERS["cpu"]]
        try:
            session = open_session(list(dict.fromkeys(order)))
        except Exception:
            if name == "cpu":  # the CPU always works, so the fault is in the model
                raise
            continue
        if provider in session.get_providers():
            return name, session
    raise CouceError(
        f"{wanted} does not work here; `couce doctor` says what works and what to install"
    )


def read_model(path: Path) -> bytes:
    """The content of an ONNX file that refers to no other file."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise CouceError(f"there is no model at {path}; `couce export` makes one") from None
    except IsADirectoryError:
        raise CouceError(f"{path} is a folder, not a model") from None
    try:
        refuse_external_data(content)
    except CouceError as error:
        raise CouceError(f"{path} cannot be used as a model: {error}") from None
    return content


def open_session(content: bytes, path: Path, provider: str, threads: int) -> tuple[str, Any]:
    """The short name of the provider, and a session of onnxruntime with the model on it."""
    onnxruntime = import_library("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # errors are raised, so onnxruntime need not print them
    options.intra_op_num_threads = threads
    # If the threads sleep between two layers, a single image takes a tenth longer. If they spin
    # (wait busily) between two runs, they take the cores from decoding, searching and answering.
    # So they spin only for the moment until the next layer starts.
    options.add_session_config_entry("session.intra_op.spin_duration_us", "5")
    options.add_session_config_entry("session.force_spinning_stop", "1")
    # onnxruntime's own format is excluded: `refuse_external_data` can only check ONNX files.
    options.add_session_config_entry("session.load_model_format", "ONNX")

    def on(providers: list[str]) -> Any:
        session = onnxruntime.InferenceSession(
            content, options, providers=providers, enable_fallback=0
        )
        session.disable_fallback()  # no fall-back to the CPU in the middle of a run either
        return session

    available = onnxruntime.get_available_providers()
    try:
        return open_on(provider, available, on)
    except CouceError:
        raise
    # The exceptions of onnxruntime have no base class of their own.
    except Exception as error:
        raise CouceError(f"onnxruntime cannot open {path}: {_first_line(error)}") from None


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _preprocessing(info: ModelInfo | None, given: Preprocess | None) -> Preprocess:
    if info is not None:
        if given is not None:
            raise CouceError("it describes its own preprocessing; do not give another")
        return Preprocess.from_dict(info.preprocess)
    if given is None:
        raise CouceError(
            "it does not describe its preprocessing; give it, for example with"
            " --preprocess resize=256 --preprocess crop=224"
        )
    return given


def _feeder(
    session: Any, info: ModelInfo | None, preprocess: Preprocess
) -> tuple[Callable[[NDArray[np.uint8]], NDArray[Any]], int | None]:
    """A function from pixels (N, crop, crop, 3) to the model's input, and the fixed batch size."""
    inputs = session.get_inputs()
    if len(inputs) != 1 or len(inputs[0].shape) != 4:
        raise CouceError("it must have exactly one input, a batch of images with four dimensions")
    batch, *shape = inputs[0].shape
    kind, crop = inputs[0].type, preprocess.crop
    feed: Callable[[NDArray[np.uint8]], NDArray[Any]]
    if info is not None:
        if kind != {"uint8": "tensor(uint8)", "float": "tensor(float)"}[info.input]:
            raise CouceError(f"its input is {kind}, but its description says {info.input}")
        feed = np.ascontiguousarray if info.input == "uint8" else _unit_range
    elif kind == "tensor(uint8)":
        plain = replace(preprocess, scale=1.0, mean=IMAGENET.mean, std=IMAGENET.std)
        if plain != preprocess:
            raise CouceError(
                "it takes uint8 pixels, so scale, mean and std have no effect; do not give them"
            )
        flip = preprocess.channels == "BGR"
        feed = (lambda p: np.ascontiguousarray(p[..., ::-1])) if flip else np.ascontiguousarray
    elif kind == "tensor(float)":
        feed = preprocess.normalise
    elif kind == "tensor(float16)":
        feed = partial(_half, preprocess)
    else:
        raise CouceError(f"its input is {kind}; images must be uint8, float or float16")
    expected = [crop, crop, 3] if kind == "tensor(uint8)" else [3, crop, crop]
    if any(isinstance(n, int) and n != e for n, e in zip(shape, expected, strict=True)):
        raise CouceError(
            f"its input is {shape}, but the preprocessing gives {expected}; change resize and crop"
        )
    return feed, batch if isinstance(batch, int) else None


def _half(preprocess: Preprocess, pixels: NDArray[np.uint8]) -> NDArray[np.float16]:
    return preprocess.normalise(pixels).astype(np.float16)


def _unit_range(pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
    return np.ascontiguousarray(np.moveaxis(pixels, -1, 1)).astype(np.float32) / np.float32(255)


def _output(session: Any) -> tuple[str, int]:
    """The name of the first output that has one embedding per image, and their dimension."""
    for output in session.get_outputs():
        floats = output.type in ("tensor(float)", "tensor(float16)", "tensor(double)")
        if floats and len(output.shape) == 2 and isinstance(output.shape[1], int):
            return output.name, output.shape[1]
    raise CouceError("it has no output of shape (batch, dimensions)")
