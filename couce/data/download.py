"""`couce data get`: resumes interrupted downloads, verifies their checksums and unpacks them."""

import hashlib
import tarfile
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from couce.errors import CouceError, unknown_name

_CHUNK = 1 << 20


class Archive(NamedTuple):
    address: str
    md5: str  # as published


ARCHIVES: dict[str, Archive] = {
    "cub": Archive(
        "https://data.caltech.edu/records/65de6-vp158/files/CUB_200_2011.tgz",
        "97eceeb196236b17998738112f37df78",
    ),
    "sop": Archive(
        "ftp://cs.stanford.edu/cs/cvgl/Stanford_Online_Products.zip",
        "7f73d41a2f44250d4779881525aea32e",
    ),
}

# Data sets that their publishers no longer offer.
GONE = {
    "cars": "the publishers of Cars-196 no longer offer it; download it elsewhere and put"
    " cars_annos.mat and car_ims/, or a tree of class folders, into {target}",
}

# Called with the number of bytes so far, and of all bytes (0 if unknown).
Progress = Callable[[int, int], None]


def get(name: str, target: Path, progress: Progress) -> None:
    """Downloads and unpacks the set of that name into the folder ``target``."""
    if name in GONE:
        raise CouceError(GONE[name].format(target=target))
    if name not in ARCHIVES:
        raise unknown_name("data set to download", name, ARCHIVES)
    archive = ARCHIVES[name]
    target.mkdir(parents=True, exist_ok=True)
    path = target / Path(archive.address).name
    if not path.exists():
        part = path.with_name(f"{path.name}.part")
        try:
            _fetch(archive.address, part, progress)
        except (URLError, OSError) as error:
            raise CouceError(
                f"could not download {archive.address} ({error}); run the command again to"
                f" continue, or put the file at {path}"
            ) from error
        _check(part, archive.md5)
        part.rename(path)
    unpack(path, target)


def _fetch(address: str, part: Path, progress: Progress) -> None:
    """Downloads a file. Continues a partial download if the server supports it."""
    have = part.stat().st_size if part.exists() else 0
    request = Request(address, headers={"Range": f"bytes={have}-"} if have else {})  # noqa: S310
    try:
        response = urlopen(request, timeout=60)  # noqa: S310 (only the addresses in ARCHIVES)
    except HTTPError as error:
        if error.code == 416 and have:  # the file is already complete
            return
        raise
    with response, part.open("ab" if getattr(response, "status", 200) == 206 else "wb") as file:
        length = int(response.headers.get("Content-Length") or 0)
        total = length and file.tell() + length
        while chunk := response.read(_CHUNK):
            file.write(chunk)
            progress(file.tell(), total)


def _check(path: Path, md5: str) -> None:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    if digest != md5:
        path.unlink()
        raise CouceError(
            f"{path.name} arrived damaged (its md5 is {digest}, not {md5}); run the command again"
        )


def unpack(path: Path, target: Path) -> None:
    """Unpacks a .zip or .tgz file. A member outside of ``target`` is an error.

    A .zip file with such a member is refused before anything is written.
    """
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                _within(target, (info.filename for info in archive.infolist()), path)
                archive.extractall(target)  # noqa: S202 (checked)
        else:
            with tarfile.open(path) as archive:
                # The filter refuses absolute paths, links that lead out, and devices.
                archive.extractall(target, filter="data")
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, OSError) as error:
        raise CouceError(f"{path} cannot be unpacked: {error}") from error


def _within(target: Path, names: Iterable[str], path: Path) -> None:
    root = target.resolve()
    for name in names:
        if not (root / name).resolve().is_relative_to(root):
            raise CouceError(
                f"{path} contains {name!r}, which would be written outside of {target}"
            )
