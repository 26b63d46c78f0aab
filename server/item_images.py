"""The images of items: uploaded files, and thumbnails for browsers."""

import fcntl
import hashlib
import os
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from couce.files import replace_file, sync_folder
from couce.index import Item
from couce.server.decoding import Decoder
from couce.server.http.problems import Problem

_CACHE_BYTES = 64 * 2**20


class ItemImages:
    """Uploaded images in ``folder``, one file for each item. File names consist of hashes only."""

    def __init__(self, folder: Path, decoder: Decoder) -> None:
        self._folder, self._decoder = folder, decoder
        self._cache: OrderedDict[tuple[str, str, float, int], bytes] = OrderedDict()
        self._cached = 0

    @contextmanager
    def changing(self, id: str) -> Iterator[None]:
        """Locks an item, so that only one process at a time changes it and its image.

        The lock holds in all processes that share the folder.
        """
        shelf = self._of(id).parent
        if not shelf.is_dir():
            shelf.mkdir(parents=True, exist_ok=True)
            sync_folder(self._folder)
        # The lock is on a file. Other machines that share the folder over a network would not see a
        # lock on the folder itself.
        handle = os.open(shelf / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)

    def keep(self, id: str, sha256: str, image: bytes) -> str:
        """Stores an image and returns its path. The file is on the disk when this returns."""
        path = self._of(id, sha256)
        if not path.exists():
            replace_file(path, lambda part: part.write_bytes(image))
        return str(path)

    def forget(self, id: str, kept: tuple[str, ...] = ()) -> None:
        """Deletes the uploaded images of an item, except those in ``kept``.

        The files of the gallery's own folder stay.
        """
        names = {Path(path).name for path in kept}
        mine = self._of(id)
        for path in mine.parent.glob(f"{mine.name}-*"):
            if path.name not in names:
                path.unlink(missing_ok=True)

    def cached(self, item: Item, size: int) -> bytes | None:
        found = self._cache.get(key := _key(item, size))
        if found is not None:
            self._cache.move_to_end(key)
        return found

    async def small(self, item: Item, size: int) -> bytes:
        """The thumbnail of an item's image, as a JPEG.

        The image is encoded again, so that no bytes of the file itself reach a browser.
        """
        gone = Problem(
            "not_found",
            "the image file of this item was moved or deleted; put it back, or remove the item",
        )
        path = next((path for path in item.paths if Path(path).is_file()), None)
        if path is None:
            raise gone
        try:
            found = await self._decoder.thumbnail(path, size)
        except Problem:
            if not Path(path).is_file():  # deleted in the meantime
                raise gone from None
            raise
        key = _key(item, size)
        if key not in self._cache:  # another request may have stored it in the meantime
            self._cache[key] = found
            self._cached += len(found)
        while self._cached > _CACHE_BYTES:
            self._cached -= len(self._cache.popitem(last=False)[1])
        return found

    def _of(self, id: str, sha256: str | None = None) -> Path:
        owner = hashlib.sha256(id.encode()).hexdigest()[:32]
        name = owner if sha256 is None else f"{owner}-{sha256[:32]}"
        return (self._folder / owner[:2] / name).absolute()


def _key(item: Item, size: int) -> tuple[str, str, float, int]:
    return (item.id, item.sha256 or "", item.time, size)
