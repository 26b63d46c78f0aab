"""Images to embeddings with an ONNX model in onnxruntime. No torch."""

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

# In the order in which `auto` tries them.
PROVIDERS = {
    "cuda": "CUDAExecutionProvider",
    "tensorrt": "TensorrtExecutionProvider",
    "cpu": "CPUExecutionProvider",
}

# An image, or what fetches one: called in the thread that decodes it.
Source = ImageSource | Callable[[], ImageSource]


class Embedder:
    """An ONNX embedding model, ready to be fed pictures.

    ``Embedder("model.onnx").embed(["bird.jpg", "car.png"])`` gives rows of unit length (2, d).

    Args:
        model: the file. Whatever does not open as a plain ONNX model is refused in a sentence.
        provider: ``auto`` (CUDA or TensorRT where they really work, else the CPU), ``cuda``,
            ``tensorrt`` or ``cpu``. One that is asked for by name and does not work is an error.
        threads: of the model and of the decoding; as many as this process has cores unless said.
        batch: how many images the model sees at once.
        preprocess: for a model without CouCE's own description. With one, it must not be given.
        max_pixels: an image of more is refused before it is decoded.

    Attributes:
        info: what the model says of itself; None for one that is not CouCE's.
        hash: sha256 of the file, by which an index knows its model.
        dim: length of an embedding.
        provider: ``cuda``, ``tensorrt`` or ``cpu``: where it really runs.
        fixed_batch: how many images the model always takes; None for as many as there are.
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
            raise CouceError(f"batch and threads are at least 1, not {batch} and {threads}")
        self.threads = threads or usable_cores()
        self.batch = batch
        self.max_pixels = max_pixels
        content = _read(self.path)
        self.hash = hashlib.sha256(content).hexdigest()
        self.provider, self._session = _open(content, self.path, provider, self.threads)
        try:
            self.info = ModelInfo.from_metadata(self._session.get_modelmeta().custom_metadata_map)
            self.preprocess = _preprocessing(self.info, preprocess)
            self._feed, self.fixed_batch = _feeder(self._session, self.info, self.preprocess)
            self._input = self._session.get_inputs()[0].name
            self._output, self.dim = _output(self._session)
            if self.info is not None and self.info.dim != self.dim:
                raise CouceError(f"it gives {self.dim} numbers but describes {self.info.dim}")
        except UnicodeDecodeError:
            raise CouceError(f"{self.path} cannot be used: its names are damaged") from None
        except CouceError as error:
            raise CouceError(f"{self.path} cannot be used: {error}") from None

    def with_threads(self, threads: int) -> "Embedder":
        """The same model with another number of threads, beside this one."""
        content = _read(self.path)
        if hashlib.sha256(content).hexdigest() != self.hash:
            raise CouceError(f"{self.path} was replaced while it was opened; open it again")
        other = copy.copy(self)
        other.threads = threads
        other.provider, other._session = _open(content, self.path, self.provider, threads)
        return other

    def embed(self, sources: Iterable[Source]) -> NDArray[np.float32]:
        """Unit rows (n, d) in the order of ``sources``; an image that cannot be read is an error."""
        rows = []
        for row in self.stream(sources):
            if isinstance(row, ImageError):
                raise row
            rows.append(row)
        return np.stack(rows) if rows else np.empty((0, self.dim), np.float32)

    def stream(self, sources: Iterable[Source]) -> Iterator[NDArray[np.float32] | ImageError]:
        """For each source in turn its unit row (d,), or what is wrong with the image.

        Sources are taken as they are needed, two batches ahead at most.
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
        """The pixels (crop, crop, 3) that :meth:`run` takes, RGB."""
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
        """Unit rows (N, d) of decoded images (N, crop, crop, 3), all in one batch."""
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
            raise CouceError(f"{self.path} gives embeddings that are zero or not finite")
        return found / lengths

    def _run_once(self, feed: NDArray[Any]) -> NDArray[Any]:
        try:
            (output,) = self._session.run([self._output], {self._input: feed})
        # onnxruntime's exceptions have no common class of their own.
        except Exception as error:
            raise CouceError(f"{self.path} fails on {len(feed)} images: {_line(error)}") from error
        if output.shape != (len(feed), self.dim):
            raise CouceError(
                f"{self.path} gives {output.shape} numbers for {len(feed)} images, instead of"
                f" {(len(feed), self.dim)}"
            )
        return output


class Session(Protocol):
    """What of an onnxruntime session tells where it runs."""

    def get_providers(self) -> list[str]: ...


_S = TypeVar("_S", bound=Session)


def open_on(
    wanted: str, available: Sequence[str], open_session: Callable[[list[str]], _S]
) -> tuple[str, _S]:
    """The provider that really works, by its short name, and a session on it.

    ``available`` are the providers that onnxruntime was built with, which says nothing of the machine:
    a session on CUDA silently runs on the CPU where CUDA is missing. So each session is asked.
    """
    if wanted != "auto" and wanted not in PROVIDERS:
        raise unknown_name("provider", wanted, ["auto", *PROVIDERS])
    for name in PROVIDERS if wanted == "auto" else [wanted]:
        provider = PROVIDERS[name]
        if provider not in available:
            continue
        # TensorRT leaves what it cannot do to CUDA, and that to the CPU.
        order = [provider, *([PROVIDERS["cuda"]] if name == "tensorrt" else []), PROVIDERS["cpu"]]
        try:
            session = open_session(list(dict.fromkeys(order)))
        except Exception:
            if name == "cpu":  # it is the model, not the machine
                raise
            continue
        if provider in session.get_providers():
            return name, session
    raise CouceError(
        f"{wanted} does not work here; `couce doctor` says what does and what to install"
    )


def _read(path: Path) -> bytes:
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


def _open(content: bytes, path: Path, provider: str, threads: int) -> tuple[str, Any]:
    onnxruntime = import_library("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # what goes wrong is raised, and said in a sentence
    options.intra_op_num_threads = threads
    # Threads that sleep between two layers take a tenth longer for a lone image; threads that spin between
    # two runs take the cores from whoever decodes, searches or answers. So they spin for the moment that
    # the next layer takes to come.
    options.add_session_config_entry("session.intra_op.spin_duration_us", "5")
    options.add_session_config_entry("session.force_spinning_stop", "1")
    # Never as onnxruntime's own format, which is not what was looked through for other files.
    options.add_session_config_entry("session.load_model_format", "ONNX")

    def open_session(providers: list[str]) -> Any:
        session = onnxruntime.InferenceSession(
            content, options, providers=providers, enable_fallback=0
        )
        session.disable_fallback()  # nor to the CPU in the middle of a run
        return session

    available = onnxruntime.get_available_providers()
    try:
        return open_on(provider, available, open_session)
    except CouceError:
        raise
    # onnxruntime's exceptions have no common class of their own.
    except Exception as error:
        raise CouceError(
            f"{path} is not a model that onnxruntime can open: {_line(error)}"
        ) from None


def _line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _preprocessing(info: ModelInfo | None, given: Preprocess | None) -> Preprocess:
    if info is not None:
        if given is not None:
            raise CouceError("it says itself how its images are to be prepared; leave that to it")
        return Preprocess.from_dict(info.preprocess)
    if given is None:
        raise CouceError(
            "it does not say how its images are to be prepared; say so, as in"
            " --preprocess resize=256 --preprocess crop=224"
        )
    return given


def _feeder(
    session: Any, info: ModelInfo | None, preprocess: Preprocess
) -> tuple[Callable[[NDArray[np.uint8]], NDArray[Any]], int | None]:
    """What turns pixels (N, crop, crop, 3) into the model's input, and its batch size if fixed."""
    inputs = session.get_inputs()
    if len(inputs) != 1 or len(inputs[0].shape) != 4:
        raise CouceError("an embedding model has one input, a batch of images")
    batch, *shape = inputs[0].shape
    kind, crop = inputs[0].type, preprocess.crop
    feed: Callable[[NDArray[np.uint8]], NDArray[Any]]
    if info is not None:
        if kind != {"uint8": "tensor(uint8)", "float": "tensor(float)"}[info.input]:
            raise CouceError(f"its input is {kind}, but it describes {info.input}")
        feed = np.ascontiguousarray if info.input == "uint8" else _unit_range
    elif kind == "tensor(uint8)":
        plain = replace(preprocess, scale=1.0, mean=IMAGENET.mean, std=IMAGENET.std)
        if plain != preprocess:
            raise CouceError(
                "it takes pixels as they are: scale, mean and std are its own business"
            )
        flip = preprocess.channels == "BGR"
        feed = (lambda p: np.ascontiguousarray(p[..., ::-1])) if flip else np.ascontiguousarray
    elif kind == "tensor(float)":
        feed = preprocess.normalise
    elif kind == "tensor(float16)":
        feed = partial(_half, preprocess)
    else:
        raise CouceError(f"its input is {kind}, which is no image")
    expected = [crop, crop, 3] if kind == "tensor(uint8)" else [3, crop, crop]
    if any(isinstance(n, int) and n != e for n, e in zip(shape, expected, strict=True)):
        raise CouceError(f"its input is {shape}, but the images are prepared as {expected}")
    return feed, batch if isinstance(batch, int) else None


def _half(preprocess: Preprocess, pixels: NDArray[np.uint8]) -> NDArray[np.float16]:
    return preprocess.normalise(pixels).astype(np.float16)


def _unit_range(pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
    return np.ascontiguousarray(np.moveaxis(pixels, -1, 1)).astype(np.float32) / np.float32(255)


def _output(session: Any) -> tuple[str, int]:
    """The first output that is a table of embeddings, and how long these are."""
    for output in session.get_outputs():
        floats = output.type in ("tensor(float)", "tensor(float16)", "tensor(double)")
        if floats and len(output.shape) == 2 and isinstance(output.shape[1], int):
            return output.name, output.shape[1]
    raise CouceError("it has no output of shape (batch, dimensions)")
