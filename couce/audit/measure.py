"""`couce audit`: how much of a model's retrieval hangs on what should not matter.

Pictures of the test half are changed one way at a time (:mod:`interventions`, and their backgrounds by
:mod:`masks`) and searched in the gallery of the unchanged others: only the query is intervened on, as a
user's photo is. Neither its own original nor the two pictures that lend it a background are among what can
be found, in any row: they would be found by what was pasted. Every model sees the same changed pictures.
"""

import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from couce.audit.interventions import (
    INTERVENTIONS,
    Pixels,
    paste,
    without_object,
)
from couce.audit.masks import Masks
from couce.audit.models import Model
from couce.data.base import Split
from couce.errors import CouceError
from couce.machine.cores import usable_cores
from couce.preprocess import ImageError, open_image

CLEAN = "as it is"
OWN, OTHER = "own-class background", "other-class background"
NO_BACKGROUND, NO_OBJECT = "no background", "background alone"
ROWS = (CLEAN, *(each.name for each in INTERVENTIONS), OWN, OTHER, NO_BACKGROUND, NO_OBJECT)

_BATCH = 32
_CHUNK = 8  # queries changed at a time
_GREY = 127

ShowProgress = Callable[[str, int, int], None]  # what, done, of how many


class QueryResults(NamedTuple):
    """Of one model: for each row of ROWS and each query, what came of the search."""

    first: NDArray[np.intp]  # (rows, Q), the gallery image found first
    hit: NDArray[np.bool_]  # (rows, Q), whether it is of the query's class
    precision: NDArray[np.float64]  # (rows, Q), the query's part of MAP@R
    margin: NDArray[np.float64]  # (rows, Q), by how much another class is nearer than the own


class Audit(NamedTuple):
    gallery: Split
    queries: NDArray[np.intp]  # (Q,), indices of the gallery
    donors: NDArray[np.intp]  # (Q, 2), whose background: of the own class, of another
    found: dict[str, QueryResults]  # by model
    pictures: "Pictures"

    @property
    def labels(self) -> NDArray[np.intp]:
        return self.gallery.labels[self.queries]


class Pictures:
    """The audited pictures, and every change of them; the same whenever they are asked for."""

    def __init__(self, split: Split, masks: Masks, size: int, seed: int) -> None:
        self.split = split
        self.masks = masks
        self.size = size
        self.seed = seed

    def load(self, index: int) -> Pixels:
        """RGB, the shorter side no longer than ``size``: strengths mean the same for all pictures."""
        image = open_image(self.split.paths[index], shortest=self.size)
        shorter = min(image.size)
        if shorter > self.size:
            scale = self.size / shorter
            image = image.resize((round(image.width * scale), round(image.height * scale)))
        return np.asarray(image)

    def mask(self, index: int, pixels: Pixels) -> NDArray[np.float64]:
        shape = self.masks.of(self.split.paths[index], Image.fromarray(pixels))
        return np.asarray(shape) / 255.0

    def background(self, index: int, size: tuple[int, int]) -> Pixels:
        """That of another picture, its object painted over, at ``size`` (width, height)."""
        pixels = self.load(index)
        empty = without_object(pixels, self.mask(index, pixels))
        return np.asarray(Image.fromarray(empty).resize(size))

    def changed(self, index: int, donors: Sequence[int]) -> Iterator[Pixels]:
        """The picture in every way of ROWS."""
        pixels = self.load(index)
        yield pixels
        for number, each in enumerate(INTERVENTIONS):
            yield each.change(pixels, np.random.default_rng((self.seed, index, number)), 1.0)
        mask = self.mask(index, pixels)
        for donor in donors:
            yield paste(pixels, mask, self.background(donor, pixels.shape[1::-1]))
        yield paste(pixels, mask, np.full_like(pixels, _GREY))
        yield without_object(pixels, mask)


def measure(
    models: Sequence[Model],
    test: Split,
    masks: Masks,
    backgrounds: Sequence[str] | None = None,
    limit: int = 500,
    gallery: int = 6000,
    size: int = 256,
    seed: int = 0,
    progress: ShowProgress = lambda *_: None,
) -> Audit:
    """``limit`` queries of a gallery of whole classes of about ``gallery`` images of ``test``.

    ``backgrounds``: the name of each test image's, where known; a swapped one is then another.
    """
    rng = np.random.default_rng(seed)
    kept = _some_classes(test, gallery, rng)
    pictures = Pictures(test.select(kept), masks, size, seed)
    rows, alive = _embed_gallery(models, pictures, progress)
    split = pictures.split = pictures.split.select(alive)
    named = None
    if backgrounds is not None:
        named = np.asarray(backgrounds)[kept][alive]
    counts = np.bincount(split.labels)
    findable = np.flatnonzero(counts[split.labels] > 2)  # itself, a lender, one to be found
    if len(split.names) < 2 or not len(findable):
        raise CouceError("an audit takes two classes at least, one of them with three images")
    queries = np.sort(rng.permutation(findable)[:limit])
    donors = np.array([_donors(split, query, named, rng) for query in queries.tolist()])
    parts: dict[str, list[QueryResults]] = {model.name: [] for model in models}
    with ThreadPoolExecutor(usable_cores()) as threads:
        for start in range(0, len(queries), _CHUNK):
            chunk = slice(start, start + _CHUNK)
            jobs = threads.map(
                lambda q, d: _prepared(models, pictures.changed(q, d)),
                queries[chunk].tolist(),
                donors[chunk].tolist(),
            )
            prepared = list(jobs)  # by query, by model: (rows, crop, crop, 3)
            for number, model in enumerate(models):
                pixels = np.concatenate([each[number] for each in prepared])
                embedded = _run(model, pixels).reshape(len(prepared), len(ROWS), -1)
                parts[model.name].append(
                    _search(
                        embedded.swapaxes(0, 1),
                        rows[number],
                        split.labels,
                        split.labels[queries[chunk]],
                        np.column_stack([queries[chunk], donors[chunk]]),
                    )
                )
            progress("queries", min(start + _CHUNK, len(queries)), len(queries))
    found = {
        name: QueryResults(*(np.concatenate(arrays, axis=1) for arrays in zip(*each, strict=True)))
        for name, each in parts.items()
    }
    return Audit(split, queries, donors, found, pictures)


def _some_classes(test: Split, images: int, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Which images: of classes by chance, until there are ``images``, or all of them."""
    if len(test.paths) <= images:
        return np.ones(len(test.paths), bool)
    order = rng.permutation(len(test.names))
    counts = np.bincount(test.labels)[order]
    enough = max(2, int(np.searchsorted(np.cumsum(counts), images)) + 1)
    return np.isin(test.labels, order[:enough])


def _embed_gallery(
    models: Sequence[Model], pictures: Pictures, progress: ShowProgress
) -> tuple[list[NDArray[np.float32]], NDArray[np.bool_]]:
    """The rows of each model, and which of the pictures could be decoded."""
    total = len(pictures.split.paths)
    rows: list[list[NDArray[np.float32]]] = [[] for _ in models]
    alive = np.zeros(total, bool)

    def prepare(index: int) -> list[Pixels] | None:
        try:
            return _prepared(models, [pictures.load(index)])
        except ImageError as error:
            warnings.warn(f"left out: {error}", stacklevel=2)
            return None

    with ThreadPoolExecutor(usable_cores()) as threads:
        for start in range(0, total, _BATCH):
            part = range(start, min(start + _BATCH, total))
            prepared = list(threads.map(prepare, part))
            alive[part] = [each is not None for each in prepared]
            read = [each for each in prepared if each is not None]
            if read:
                for number, model in enumerate(models):
                    rows[number].append(
                        _run(model, np.concatenate([each[number] for each in read]))
                    )
            progress("gallery", part.stop, total)
    if not alive.any():
        raise CouceError("none of the images could be read")
    return [np.concatenate(each) for each in rows], alive


def _prepared(models: Sequence[Model], views: Iterator[Pixels] | list[Pixels]) -> list[Pixels]:
    """For each model the views as it takes them (views, crop, crop, 3)."""
    images = [Image.fromarray(view) for view in views]
    return [np.stack([model.preprocess.pixels(image) for image in images]) for model in models]


def _run(model: Model, pixels: Pixels) -> NDArray[np.float32]:
    starts = range(0, len(pixels), _BATCH)
    return np.concatenate([model.run(pixels[start : start + _BATCH]) for start in starts])


def _donors(
    split: Split, query: int, named: NDArray[np.str_] | None, rng: np.random.Generator
) -> tuple[int, int]:
    """A picture of the query's class and one of another, whose backgrounds it is to stand before."""
    own = np.flatnonzero(split.labels == split.labels[query])
    other = split.labels != split.labels[query]
    if named is not None and np.any(other & (named != named[query])):
        other &= named != named[query]
    return int(rng.choice(own[own != query])), int(rng.choice(np.flatnonzero(other)))


def _search(
    embedded: NDArray[np.float32],  # (rows, q, d)
    gallery: NDArray[np.float32],  # (G, d)
    labels: NDArray[np.intp],  # (G,)
    wanted: NDArray[np.intp],  # (q,), the class to be found
    left_out: NDArray[np.intp],  # (q, k), what is not searched, the query itself among it
) -> QueryResults:
    """R@1 and MAP@R as couce.metrics has them, query by query."""
    closeness = embedded @ gallery.T  # (rows, q, G)
    same = labels[None, :] == wanted[:, None]  # (q, G)
    for column in left_out.T:
        closeness[:, np.arange(len(wanted)), column] = -np.inf
        same[np.arange(len(wanted)), column] = False
    relevant = same.sum(axis=1)  # (q,)
    depth = int(relevant.max())
    nearest = np.argpartition(-closeness, depth - 1, axis=2)[..., :depth]
    order = np.argsort(-np.take_along_axis(closeness, nearest, 2), axis=2, kind="stable")
    nearest = np.take_along_axis(nearest, order, 2)  # (rows, q, depth)
    hits = np.take_along_axis(np.broadcast_to(same, closeness.shape), nearest, 2)
    ranks = np.arange(1, depth + 1)
    hits &= ranks <= relevant[:, None]
    precision = (np.cumsum(hits, axis=2) * hits / ranks).sum(axis=2) / relevant
    own = np.where(same, closeness, -np.inf).max(axis=2)
    others = np.where(same, -np.inf, closeness).max(axis=2)  # what is left out is -inf already
    return QueryResults(nearest[..., 0], hits[..., 0], precision, (others - own).astype(np.float64))
