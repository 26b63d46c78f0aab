"""Images in every accepted format, and hostile changes of them. The n-th is always the same."""

import io
import random
import struct
import zipfile
import zlib
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import numpy as np
from PIL import Image, TiffImagePlugin

WIDTH, HEIGHT = 61, 47  # unusual numbers, which are easy to find in the headers of files
_SIZES = (0, 1, 2, 255, 7_000, 9_999, 32_767, 65_535, 2**31 - 1, 2**32 - 1)
_TYPES = (
    *("image/jpeg", "image/png", "image/webp", "image/gif", "image/x-anything"),
    *("application/octet-stream", "application/x-www-form-urlencoded", ""),
)
_REFUSED = ("text/plain", "application/pdf", "multipart/mixed; boundary=b", "image", "\xff")


class Mutant(NamedTuple):
    seed: str  # its name
    change: str
    type: str  # the content type that is sent
    form: bool  # whether it is sent in a form
    content: bytes


class Mutants:
    """``Mutants()[n]`` is the n-th hostile image."""

    def __init__(self) -> None:
        self.seeds = {**images(), **strangers()}
        self._names = sorted(self.seeds)

    def __getitem__(self, n: int) -> Mutant:
        rng = random.Random(n)
        # The bombs take up to a second each, so they are used rarely.
        name = rng.choice(self._names)
        if name.startswith("bomb") and rng.random() < 0.9:
            name = "png"
        change = rng.choice(sorted(CHANGES))
        content = CHANGES[change](self.seeds[name], rng, self)
        kind = rng.choice(_TYPES) if rng.random() < 0.97 else rng.choice(_REFUSED)
        return Mutant(name, change, kind, rng.random() < 0.15, content)

    def other(self, rng: random.Random) -> bytes:
        return self.seeds[rng.choice(self._names)][:20_000]


@cache
def images() -> dict[str, bytes]:
    """Images in every variant of every accepted format."""
    rng = np.random.default_rng(0)
    coarse = rng.integers(0, 256, (6, 8, 3), dtype=np.uint8)
    rgb = Image.fromarray(coarse).resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC)
    grey = rgb.convert("L")
    alpha = rgb.convert("RGBA")
    alpha.putalpha(grey)
    deep = Image.fromarray(rng.integers(0, 65_536, (HEIGHT, WIDTH), dtype=np.uint16))
    turned = Image.Exif()
    turned[0x0112], turned[0x010E] = 6, "a description"
    frames = [rgb.rotate(30 * turn) for turn in range(3)]
    animated = {"save_all": True, "append_images": frames[1:], "duration": 50, "loop": 0}
    written: dict[str, tuple[Image.Image, str, dict[str, object]]] = {
        "jpeg": (rgb, "JPEG", {}),
        "jpeg-progressive": (rgb, "JPEG", {"progressive": True}),
        "jpeg-cmyk": (rgb.convert("CMYK"), "JPEG", {}),
        "jpeg-grey": (grey, "JPEG", {}),
        "jpeg-exif": (rgb, "JPEG", {"exif": turned, "icc_profile": b"\0" * 400}),
        "jpeg-restarts": (rgb, "JPEG", {"restart_marker_blocks": 1}),
        "mpo": (frames[0], "MPO", {"save_all": True, "append_images": frames[1:]}),
        "png": (rgb, "PNG", {}),
        "png-16": (deep, "PNG", {}),
        "png-palette": (rgb.convert("P", palette=Image.Palette.ADAPTIVE), "PNG", {}),
        "png-alpha": (alpha, "PNG", {}),
        "png-1": (grey.convert("1"), "PNG", {}),
        "apng": (frames[0], "PNG", animated),
        "webp": (rgb, "WEBP", {}),
        "webp-lossless": (alpha, "WEBP", {"lossless": True}),
        "webp-animated": (frames[0], "WEBP", animated),
        "gif": (rgb, "GIF", {}),
        "gif-animated": (frames[0], "GIF", animated),
        "bmp": (rgb, "BMP", {}),
        "bmp-palette": (grey, "BMP", {}),
        "avif": (rgb, "AVIF", {}),
        "ppm": (rgb, "PPM", {}),
        "pgm": (grey, "PPM", {}),
    }
    for compression in ("raw", "tiff_lzw", "tiff_adobe_deflate", "packbits", "jpeg"):
        written[f"tiff-{compression}"] = (rgb, "TIFF", {"compression": compression})
    written["tiff-group4"] = (grey.convert("1"), "TIFF", {"compression": "group4"})
    written["tiff-16"] = (deep, "TIFF", {})
    found = {name: _saved(*each) for name, each in written.items()}
    found["png-interlaced"] = _interlaced(np.asarray(grey))
    found["ppm-plain"] = b"P3 2 2 255 1 2 3 4 5 6 7 8 9 10 11 12\n"
    found["bomb-pixels"] = _saved(Image.new("1", (7000, 7000)), "PNG", {})  # just within the limit
    found["bomb-gif"] = _saved(Image.new("P", (6000, 6000)), "GIF", {})
    found["bomb-text"] = _with_chunk(found["png"], b"zTXt", b"k\0\0" + zlib.compress(bytes(2**25)))
    found["bomb-profile"] = _with_chunk(
        found["png"], b"iCCP", b"k\0\0" + zlib.compress(bytes(2**25))
    )
    return found


def strangers() -> dict[str, bytes]:
    """Files of other formats. Pillow itself would open some of them."""
    small = Image.new("RGB", (16, 16), "red")
    found = {kind.lower(): _saved(small, kind, {}) for kind in ("EPS", "PDF", "ICO", "TGA", "PCX")}
    found["psd"] = b"8BPS" + struct.pack(">H6xHIIHH", 1, 3, 16, 16, 8, 3) + bytes(900)
    found["svg"] = b'<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>'
    found["html"] = b"<!doctype html><script>alert(1)</script>"
    found["zip"] = _zipped(b"text")
    found["nothing"] = b""
    found["zeros"] = bytes(5000)
    return found


def _saved(image: Image.Image, kind: str, options: dict[str, object]) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def _with_chunk(png: bytes, kind: bytes, data: bytes) -> bytes:
    return png[:33] + _chunk(kind, data) + png[33:]  # after the header


def _interlaced(grey: "np.ndarray[tuple[int, ...], np.dtype[np.uint8]]") -> bytes:
    """A PNG with Adam7 interlacing, which Pillow reads but does not write."""
    passes = [(0, 8, 0, 8), (0, 8, 4, 8), (4, 8, 0, 4), (0, 4, 2, 4), (2, 4, 0, 2), (0, 2, 1, 2)]
    passes.append((1, 2, 0, 1))
    rows = b""
    for top, down, left, right in passes:
        for row in grey[top::down, left::right]:
            rows += b"\0" + row.tobytes() if row.size else b""
    header = struct.pack(">IIBBBBB", grey.shape[1], grey.shape[0], 8, 0, 0, 0, 1)
    data = _chunk(b"IHDR", header) + _chunk(b"IDAT", zlib.compress(rows)) + _chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + data


def _zipped(content: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("a.txt", content)
    return file.getvalue()


Change = Callable[[bytes, random.Random, Mutants], bytes]


def _as_it_is(content: bytes, rng: random.Random, _: Mutants) -> bytes:
    # One more byte makes it another file, so that the server has not seen it before.
    return content + bytes([rng.randrange(256)])


def _truncated(content: bytes, rng: random.Random, _: Mutants) -> bytes:
    return content[: rng.randrange(len(content) + 1)]


def _flipped(content: bytes, rng: random.Random, _: Mutants) -> bytes:
    found = bytearray(content)
    for _time in range(rng.choice((1, 1, 2, 8, 64)) if found else 0):
        found[rng.randrange(len(found))] ^= 1 << rng.randrange(8)
    return bytes(found)


def _flipped_in_front(content: bytes, rng: random.Random, _: Mutants) -> bytes:
    found = bytearray(content)
    for _time in range(rng.choice((1, 2, 4)) if found else 0):
        found[rng.randrange(min(64, len(found)))] = rng.randrange(256)
    return _mended(bytes(found))


def _spliced(content: bytes, rng: random.Random, all_of: Mutants) -> bytes:
    other = all_of.other(rng)
    here, there = rng.randrange(len(content) + 1), rng.randrange(len(other) + 1)
    length = rng.choice((1, 16, 200, 5000))
    return (
        content[:here] + other[there : there + length] + content[here + rng.choice((0, length)) :]
    )


def _repeated(content: bytes, rng: random.Random, _: Mutants) -> bytes:
    here = rng.randrange(len(content) + 1)
    part = content[here : here + rng.choice((4, 64, 1000))]
    return content[:here] + part * rng.choice((2, 30)) + content[here:]


def _resized(content: bytes, rng: random.Random, _: Mutants) -> bytes:
    """Changes the width or height in the header, in each of four possible encodings."""
    found = content
    for size in (WIDTH, HEIGHT) if rng.random() < 0.5 else (rng.choice((WIDTH, HEIGHT)),):
        new = rng.choice(_SIZES)
        if content.startswith((b"P3", b"P5", b"P6")):
            found = found.replace(str(size).encode(), str(new).encode(), 1)
            continue
        for form in (">I", "<I", ">H", "<H"):
            said = struct.pack(form, size)
            place = found.find(said, 0, 1000)
            if place >= 0:
                new_bytes = struct.pack(form, new & (2 ** (8 * len(said)) - 1))
                found = found[:place] + new_bytes + found[place + len(said) :]
                break
    return _mended(found)


def _mended(content: bytes) -> bytes:
    """Corrects the checksum of a PNG's header, so that decoders accept it."""
    if content[12:16] != b"IHDR" or len(content) < 33:
        return content
    return content[:29] + struct.pack(">I", zlib.crc32(content[12:29])) + content[33:]


def _and_a_zip(content: bytes, _: random.Random, __: Mutants) -> bytes:
    return content + _zipped(content)


def _behind_a_zip(content: bytes, _: random.Random, __: Mutants) -> bytes:
    return _zipped(content) + content


def _and_a_page(content: bytes, rng: random.Random, all_of: Mutants) -> bytes:
    page = all_of.seeds["html"]
    return content + page if rng.random() < 0.5 else page + content


def _with_tags(content: bytes, rng: random.Random, _: Mutants) -> bytes:
    """Inserts EXIF tags with numbers of any size at the beginning of a JPEG."""
    if not content.startswith(b"\xff\xd8"):
        return _flipped(content, rng, _)
    tags = TiffImagePlugin.ImageFileDirectory_v2()
    tags[0x0112] = rng.choice((0, 3, 6, 8, 9, 65_535))
    tags[0x9286] = bytes(rng.randrange(500))
    file = io.BytesIO(b"II*\0\x08\0\0\0")
    file.seek(8)
    tags.save(file)
    exif = bytearray(b"Exif\0\0" + file.getvalue())
    for _time in range(rng.randrange(4)):
        exif[rng.randrange(6, len(exif))] = rng.randrange(256)
    return content[:2] + b"\xff\xe1" + struct.pack(">H", len(exif) + 2) + exif + content[2:]


CHANGES: dict[str, Change] = {
    "as it is": _as_it_is,
    "truncated": _truncated,
    "bits flipped": _flipped,
    "header bytes": _flipped_in_front,
    "spliced": _spliced,
    "repeated": _repeated,
    "resized": _resized,
    "and a zip": _and_a_zip,
    "behind a zip": _behind_a_zip,
    "and a page": _and_a_page,
    "tags": _with_tags,
}
