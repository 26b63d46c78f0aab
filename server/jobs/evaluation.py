"""The process of one evaluation.

A server starts it as `python -m couce.server.jobs.evaluation FOLDER SETTINGS`.
"""

import fcntl
import hashlib
import json
import math
import os
import resource
import sys
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from couce.embedder import Embedder
from couce.errors import CouceError, StorageError
from couce.index import open_index
from couce.metrics import clustering_nmi, query_gallery_metrics, retrieval_metrics
from couce.preprocess import ImageError, Preprocess
from couce.server.jobs.queue import Job, JobFolder

KS = (1, 2, 4, 8)
_ENTRIES = 200_000  # most files in an archive
_UNPACKED = 4 * 2**30  # most bytes of all unpacked files of an archive

Progress = Callable[[float, str], None]


class LabelledVectors(NamedTuple):
    """Embeddings with their labels, and how many were left out."""

    vectors: NDArray[np.float32]  # (n, d)
    labels: NDArray[np.str_]  # (n,)
    left_out: int


def evaluate(
    job: Job, source: Path, settings: dict[str, Any], progress: Progress
) -> dict[str, float]:
    """R@1, 2, 4, 8, RP, MAP@R and NMI.

    The numbers of items, of classes and of images that were left out are written into ``job``.
    """
    if job.of == "embeddings":
        found = read_embeddings(source)
        metrics = _among_themselves(found, progress)
    elif job.of == "index":
        progress(0.1, "reading the index")
        found = of_index(settings["index"])
        metrics = _among_themselves(found, progress)
    else:
        known = shown(settings["index"])
        found = embed_queries(
            source, settings, known, lambda share: progress(0.8 * share, "embedding")
        )
        progress(0.8, "reading the index")
        gallery = of_index(settings["index"])
        progress(0.9, "measuring")
        metrics = query_gallery_metrics(
            found.vectors, found.labels, gallery.vectors, gallery.labels, KS
        )
        metrics["NMI"] = clustering_nmi(found.vectors, found.labels)
    job.items, job.left_out = len(found.labels), found.left_out
    job.classes = len(np.unique(found.labels))
    return metrics


def _among_themselves(found: LabelledVectors, progress: Progress) -> dict[str, float]:
    progress(0.3, "measuring")
    return retrieval_metrics(found.vectors, found.labels, KS)


def of_index(address: str) -> LabelledVectors:
    """All labelled embeddings of an index."""
    vectors, labels, left_out = [], [], 0
    with open_index(address) as index:
        for block in index.vectors():
            kept = [place for place, label in enumerate(block.labels) if label is not None]
            left_out += len(block.labels) - len(kept)
            vectors.append(block.vectors[kept])
            labels += [block.labels[place] for place in kept]
    if not labels:
        raise CouceError("no item of the index has a label; add labelled images first")
    return LabelledVectors(np.concatenate(vectors), np.array(labels), left_out)


def shown(address: str) -> set[str]:
    """The sha256 of every image that the index has."""
    with open_index(address) as index:
        return {item.sha256 for item in index.every_item() if item.sha256 is not None}


def read_embeddings(path: Path) -> LabelledVectors:
    """Reads an npz with ``embeddings`` (n, d) and ``labels`` (n,), as `couce embed` writes it."""
    archive = _open_zip(
        path, "the embeddings are not an npz file; `couce embed` writes one, for example"
    )
    _check_sizes(archive)
    try:
        with np.load(path, allow_pickle=False) as content:
            missing = {"embeddings", "labels"} - set(content.files)
            if missing:
                raise CouceError(
                    f"the npz has no {' and no '.join(sorted(missing))}; it needs the arrays"
                    " embeddings and labels"
                )
            vectors = np.asarray(content["embeddings"], np.float32)
            labels = content["labels"].astype(str)
    except (CouceError, MemoryError):
        raise
    except Exception:  # numpy and zipfile raise errors of many types
        raise CouceError(
            "the npz cannot be read; save plain numbers and texts in it, no Python objects"
        ) from None
    if vectors.ndim != 2 or labels.shape != vectors.shape[:1]:
        raise CouceError(
            f"embeddings must be (n, d) and labels (n,), not {vectors.shape} and {labels.shape}"
        )
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    if not np.all(np.isfinite(lengths)) or not np.all(lengths > 0):
        raise CouceError("an embedding is zero or not finite; remove it from the npz")
    return LabelledVectors(vectors / lengths, labels, 0)


def embed_queries(
    path: Path, settings: dict[str, Any], known: set[str], progress: Callable[[float], None]
) -> LabelledVectors:
    """Embeds the images of a zip, labelled by their folders. Nothing is unpacked to the disk.

    An image that is in the index, too, is left out, because it would find itself.
    """
    archive = _open_zip(path, "the query set is not a zip file; send a zip of class folders")
    _check_sizes(archive)
    names = sorted(info.filename for info in archive.infolist() if _is_query(info))
    if not names:
        raise CouceError(
            "the zip has no images in class folders; add them under names such as wren/1.jpg"
        )
    preprocess = settings["preprocess"]
    embedder = Embedder(
        settings["model"],
        threads=1,
        preprocess=Preprocess.parse(preprocess) if preprocess else None,
        max_pixels=settings["max_pixels"],
    )
    # The model file may have been replaced since the server loaded it. Then this raises an error.
    open_index(settings["index"], model_hash=embedder.hash, dim=embedder.dim).close()

    def images() -> Iterator[bytes]:
        for name in names:
            try:
                content = archive.read(name)
            except Exception:  # zipfile raises errors of many types
                content = b""
            # Empty bytes are counted as an image that cannot be read.
            yield b"" if hashlib.sha256(content).hexdigest() in known else content

    vectors, labels = [], []
    for place, (name, row) in enumerate(zip(names, embedder.stream(images()), strict=True)):
        if not isinstance(row, ImageError):
            vectors.append(row)
            labels.append(PurePosixPath(name).parent.name)
        if place % 16 == 0:
            progress(place / len(names))
    if not vectors:
        raise CouceError(
            "no image of the zip can be used, because each is damaged or in the index already;"
            " send others"
        )
    return LabelledVectors(np.stack(vectors), np.array(labels), len(names) - len(vectors))


def _is_query(info: zipfile.ZipInfo) -> bool:
    path = PurePosixPath(info.filename)
    hidden = any(part.startswith((".", "__MACOSX")) for part in path.parts)
    return not info.is_dir() and not hidden and path.parent.name != ""


def _open_zip(path: Path, fault: str) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(path)
    except MemoryError:
        raise
    except Exception:
        raise CouceError(fault) from None


def _check_sizes(archive: zipfile.ZipFile) -> None:
    """Refuses an archive whose table of contents announces too many files or bytes.

    This also refuses zip bombs, because zipfile reads no more bytes of a file than announced.
    """
    found = archive.infolist()
    if len(found) > _ENTRIES or sum(info.file_size for info in found) > _UNPACKED:
        raise CouceError(
            f"the archive has more than {_ENTRIES} files or {_UNPACKED // 2**30} GB; send a part of"
            " it"
        )


def main(folder: Path, settings: dict[str, Any]) -> None:
    """Waits for its turn, evaluates, and writes the result into the folder of the job."""
    files = JobFolder(folder)
    with (folder.parent / "turn").open("w") as turn:
        threading.Thread(target=_watch, args=(files,), daemon=True).start()
        fcntl.flock(turn, fcntl.LOCK_EX)  # one evaluation runs at a time
        job = files.read()
        job.state, job.started = "running", time.time()

        def progress(share: float, stage: str) -> None:
            job.progress, job.stage = round(share, 3), stage
            files.write(job)

        try:
            progress(0.0, "starting")
            found = evaluate(job, files.input, settings, progress)
            job.metrics = {k: None if math.isnan(v) else v for k, v in found.items()}
            job.state, job.progress, job.stage = "done", 1.0, "done"
        except MemoryError:
            job.state = "failed"
            job.detail = "there is not enough memory for the evaluation; use a smaller set"
        except Exception as error:
            job.state, job.detail = "failed", str(error)
            if isinstance(error, StorageError) or not isinstance(error, CouceError):
                job.detail = "the server failed; its log has the reason"
                print(
                    json.dumps({"event": "failed", "id": job.id, "reason": repr(error)}),
                    file=sys.stderr,
                )
        job.ended = time.time()
        files.input.unlink(missing_ok=True)
        files.write(job)


def _watch(files: JobFolder) -> None:
    """Waits until the job is cancelled, and then ends this process."""
    while not files.cancel.exists():
        time.sleep(0.2)
    # The lock is kept until the process ends, so that the other thread writes nothing after this.
    with files.writing:
        job = files.read()
        if not job.over:
            job.state, job.ended = "cancelled", time.time()
            files.input.unlink(missing_ok=True)
            files.write(job)
        os._exit(0)


if __name__ == "__main__":
    os.nice(19)
    # Linux may give every session an equal share of the cores. This one gets a smaller share.
    with suppress(OSError):
        Path("/proc/self/autogroup").write_text("19")
    # This process runs only when a core has nothing else to do.
    with suppress(OSError, AttributeError):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # If memory runs out, the kernel should end this process and not the server.
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
