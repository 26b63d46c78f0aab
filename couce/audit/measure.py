"""`couce audit`: how much the retrieval of a model depends on things that should not matter.

Each query image of the test half is changed in one way at a time and searched among the unchanged
images. The changes are those of :mod:`interventions`, and changes of the background with
:mod:`masks`. Only the query is changed, because in practice only the query comes from a user. Three
images can never be found, in any row: the original of the query and the two images that lend it a
background. They would be found because of what was pasted. All models see the same changed images.
"""

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from couce.audit.interventions import INTERVENTIONS, Pixels
from couce.audit.models import Model
from couce.data.base import Split
from couce.errors import CouceError
from couce.machine.cores import usable_cores
from couce.masks import Masks
from couce.masks.backgrounds import Mask, paste, without_object
from couce.preprocess import ImageError, open_image

CLEAN = "as it is"
OWN, OTHER = "own-class background", "other-class background"
NO_BACKGROUND, NO_OBJECT = "no background", "background alone"
ROWS = (CLEAN, *(each.name for each in INTERVENTIONS), OWN, OTHER, NO_BACKGROUND, NO_OBJECT)

_BATCH = 32
_CHUNK = 8  # how many queries are changed at a time
_GREY = 127

ShowProgress = Callable[[str, int, int], None]  # what is being done, how many are done, of how many


class QueryResults(NamedTuple):
    """The results of one model for each row of ROWS and each query."""

    first: NDArray[np.intp]  # (rows, Q), the nearest image of the gallery
    hit: NDArray[np.bool_]  # (rows, Q), whether it has the query's class
    precision: NDArray[np.float64]  # (rows, Q), the query's part of MAP@R
    # (rows, Q), the cosine to the nearest image of another class minus that to the nearest image
    # of the query's class
    margin: NDArray[np.float64]


class Audit(NamedTuple):
    gallery: Split
    queries: NDArray[np.intp]  # (Q,), indices into the gallery
    donors: NDArray[np.intp]  # (Q, 2), the background's image: one of the own class, one of another
    found: dict[str, QueryResults]  # by the name of the model
    images: "AuditImages"

    @property
    def labels(self) -> NDArray[np.intp]:
        return self.gallery.labels[self.queries]


class AuditImages:
    """The audited images and all changes of them. The same call always gives the same pixels."""

    def __init__(self, split: Split, masks: Masks, size: int, seed: int) -> None:
        self.split = split
        self.masks = masks
        self.size = size
        self.seed = seed

    def load(self, index: int) -> Pixels:
        """The RGB pixels of an image, whose shorter side is scaled down to at most ``size``."""
        image = open_image(self.split.paths[index], shortest=self.size)
        shorter = min(image.size)
        if shorter > self.size:
            scale = self.size / shorter
            image = image.resize((round(image.width * scale), round(image.height * scale)))
        return np.asarray(image)

    def mask(self, index: int, pixels: Pixels) -> Mask:
        return np.asarray(self.masks.of(self.split.paths[index], Image.fromarray(pixels)))

    def background(self, index: int) -> Image.Image:
        """The background of an image, with its object painted over."""
        pixels = self.load(index)
        return Image.fromarray(without_object(pixels, self.mask(index, pixels)))

    def changed(self, index: int, donors: Sequence[int]) -> Iterator[Pixels]:
        """The image in each form of ROWS, in this order."""
        pixels = self.load(index)
        yield pixels
        for number, each in enumerate(INTERVENTIONS):
            yield each.change(pixels, np.random.default_rng((self.seed, index, number)), 1.0)
        mask = self.mask(index, pixels)
        for donor in donors:
            yield paste(pixels, mask, filling(self.background(donor), pixels))
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
    """Searches up to ``limit`` queries in a gallery of about ``gallery`` images of whole classes.

    ``backgrounds`` has the name of each test image's background, if known. The background of
    another class is then one with another name.
    """
    rng = np.random.default_rng(seed)
    kept = _some_classes(test, gallery, rng)
    images = AuditImages(test.select(kept), masks, size, seed)
    unchanged, alive = embed_views(
        models,
        len(images.split.paths),
        lambda index: [images.load(index)],
        partial(progress, "gallery"),
    )
    rows = [each[0] for each in unchanged]
    split = images.split = images.split.select(alive)
    named = None
    if backgrounds is not None:
        named = np.asarray(backgrounds)[kept][alive]
    counts = np.bincount(split.labels)
    # A class needs three images: the query, one that lends its background, and one to be found.
    findable = np.flatnonzero(counts[split.labels] > 2)
    if len(split.names) < 2 or not len(findable):
        raise CouceError(
            "an audit needs at least two classes, one of them with at least three images"
        )
    queries = np.sort(rng.permutation(findable)[:limit])
    donors = np.array([_donors(split, query, named, rng) for query in queries.tolist()])
    parts: dict[str, list[QueryResults]] = {model.name: [] for model in models}
    with ThreadPoolExecutor(usable_cores()) as threads:
        for start in range(0, len(queries), _CHUNK):
            chunk = slice(start, start + _CHUNK)
            jobs = threads.map(
                lambda q, d: _prepared(models, images.changed(q, d)),
                queries[chunk].tolist(),
                donors[chunk].tolist(),
            )
            prepared = list(jobs)  # for each query and model (rows, crop, crop, 3)
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
    return Audit(split, queries, donors, found, images)


def _some_classes(test: Split, images: int, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Which images are taken (N,): random classes until there are ``images`` images, or all."""
    if len(test.paths) <= images:
        return np.ones(len(test.paths), bool)
    order = rng.permutation(len(test.names))
    counts = np.bincount(test.labels)[order]
    enough = max(2, int(np.searchsorted(np.cumsum(counts), images)) + 1)
    return np.isin(test.labels, order[:enough])


def filling(background: Image.Image, pixels: Pixels) -> Pixels:
    """The background at the size of ``pixels``. Its proportions are kept, and its edges are cut."""
    return np.asarray(ImageOps.fit(background, (pixels.shape[1], pixels.shape[0])))


def embed_views(
    models: Sequence[Model],
    count: int,
    views: Callable[[int], Iterable[Pixels]],
    progress: Callable[[int, int], None],
) -> tuple[list[NDArray[np.float32]], NDArray[np.bool_]]:
    """The embeddings of all views of images 0 to ``count`` - 1, without those that do not decode.

    Returns: for each model (views, N, d), and which images could be decoded (count,).
    """
    rows: list[list[NDArray[np.float32]]] = [[] for _ in models]
    alive = np.zeros(count, bool)

    def prepare(index: int) -> list[Pixels] | None:
        try:
            return _prepared(models, views(index))
        except ImageError as error:
            warnings.warn(f"left out: {error}", stacklevel=2)
            return None

    with ThreadPoolExecutor(usable_cores()) as threads:
        for start in range(0, count, _BATCH):
            part = range(start, min(start + _BATCH, count))
            prepared = list(threads.map(prepare, part))
            alive[part] = [each is not None for each in prepared]
            read = [each for each in prepared if each is not None]
            if read:
                for number, model in enumerate(models):
                    pixels = np.stack([each[number] for each in read], axis=1)  # (views, n, ...)
                    embedded = _run(model, pixels.reshape(-1, *pixels.shape[2:]))
                    rows[number].append(embedded.reshape(*pixels.shape[:2], -1))
            progress(part.stop, count)
    if not alive.any():
        raise CouceError("none of the images could be decoded")
    return [np.concatenate(each, axis=1) for each in rows], alive


def _prepared(models: Sequence[Model], views: Iterable[Pixels]) -> list[Pixels]:
    """For each model, the views as pixels of its input size (views, crop, crop, 3)."""
    images = [Image.fromarray(view) for view in views]
    return [np.stack([model.preprocess.pixels(image) for image in images]) for model in models]


def _run(model: Model, pixels: Pixels) -> NDArray[np.float32]:
    starts = range(0, len(pixels), _BATCH)
    return np.concatenate([model.run(pixels[start : start + _BATCH]) for start in starts])


def _donors(
    split: Split, query: int, named: NDArray[np.str_] | None, rng: np.random.Generator
) -> tuple[int, int]:
    """An image of the query's class and one of another class, which lend their backgrounds."""
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
    left_out: NDArray[np.intp],  # (q, k), images that cannot be found, with the query itself
) -> QueryResults:
    """R@1 and MAP@R of each query, as couce.metrics defines them."""
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
    others = np.where(same, -np.inf, closeness).max(axis=2)  # the left-out images are -inf already
    return QueryResults(nearest[..., 0], hits[..., 0], precision, (others - own).astype(np.float64))
