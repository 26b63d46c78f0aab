import json
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import transforms

from couce.backbones import BACKBONES
from couce.errors import CouceError
from couce.preprocess import ImageError, Preprocess, open_image


def picture(width: int = 90, height: int = 60) -> Image.Image:
    """An image of smooth colours, which lossy formats hardly change."""
    y, x = np.mgrid[0:height, 0:width]
    rgb = np.stack([255 * x / width, 255 * y / height, 128 + 0 * x], axis=-1)
    return Image.fromarray(rgb.astype(np.uint8))


def encoded(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    buffer = BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def difference(a: Image.Image, b: Image.Image) -> float:
    assert a.size == b.size
    return float(np.abs(np.asarray(a, dtype=float) - np.asarray(b, dtype=float)).max())


@pytest.mark.parametrize(
    ("convert", "kind", "tolerance"),
    [
        (lambda im: im, "JPEG", 12),
        (lambda im: im.convert("CMYK"), "JPEG", 12),
        (lambda im: im.convert("CMYK"), "TIFF", 1),
        (lambda im: im.quantize(256), "PNG", 24),
        (lambda im: im.quantize(256), "GIF", 24),
        (lambda im: im.convert("RGBA"), "PNG", 0),
        (lambda im: im.convert("RGBA"), "WEBP", 24),
        (lambda im: im, "BMP", 0),
    ],
    ids=["jpeg", "cmyk-jpeg", "cmyk-tiff", "palette-png", "gif", "rgba", "webp", "bmp"],
)
def test_modes_and_formats_become_rgb(
    convert: Callable[[Image.Image], Image.Image], kind: str, tolerance: float
) -> None:
    opened = open_image(encoded(convert(picture()), kind))
    assert opened.mode == "RGB"
    assert difference(opened, picture()) <= tolerance


@pytest.mark.parametrize(
    "mode", ["1", "L", "LA", "P", "PA", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr", "HSV"]
)
def test_every_mode_of_pillow_can_be_given(mode: str) -> None:
    image = Image.new("L", (4, 3), 255)
    through = {"PA": "LA", "RGBa": "RGBA"}.get(mode, mode)
    image = image.convert(through).convert(mode)
    opened = open_image(image)
    assert opened.mode == "RGB"
    assert np.asarray(opened).min() == 255


def test_sixteen_bit_grey_keeps_its_shades() -> None:
    """Pillow alone would clip the values to 255, which gives a white image."""
    ramp = np.linspace(0, 65535, 256).astype(np.uint16).reshape(16, 16)
    for opened in (
        open_image(encoded(Image.fromarray(ramp), "PNG")),
        open_image(encoded(Image.fromarray(ramp), "TIFF")),
        open_image(Image.fromarray(ramp.astype(np.int32))),
    ):
        assert np.array_equal(np.asarray(opened)[..., 0].ravel(), np.arange(256))


def test_transparent_parts_become_white() -> None:
    image = Image.new("RGBA", (2, 1), (255, 0, 0, 0))
    image.putpixel((1, 0), (0, 0, 255, 255))
    assert np.asarray(open_image(encoded(image))).tolist() == [[[255, 255, 255], [0, 0, 255]]]
    palette = image.quantize(4)
    assert open_image(encoded(palette)).getpixel((0, 0)) == (255, 255, 255)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_applied(orientation: int) -> None:
    upright = picture()
    undo = {
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_90,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_270,
    }
    stored = upright.transpose(undo[orientation]) if orientation > 1 else upright
    exif = Image.Exif()
    exif[0x0112] = orientation
    opened = open_image(encoded(stored, "PNG", exif=exif))
    assert difference(opened, upright) == 0


def test_first_frame_of_an_animation() -> None:
    frames = [Image.new("RGB", (5, 5), colour) for colour in ("red", "blue")]
    data = encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])
    assert open_image(data).getpixel((0, 0)) == (255, 0, 0)


def test_a_path_bytes_and_an_image_give_the_same(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(encoded(picture()))
    images = [
        open_image(source)
        for source in (tmp_path / "a.png", str(tmp_path / "a.png"), encoded(picture()), picture())
    ]
    assert all(difference(image, picture()) == 0 for image in images)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (b"", "not an image"),
        (b"<svg></svg>", "not an image"),
        (encoded(picture(400, 400), "JPEG")[:2000], "damaged"),
        (encoded(picture(400, 400), "PNG")[:600], "damaged"),
        (Path("nowhere.jpg"), "no image at nowhere.jpg"),
        (Path(), "damaged|no image"),
        (encoded(Image.new("F", (2, 2)), "TIFF"), "floating-point"),
    ],
    ids=["empty", "svg", "cut jpeg", "cut png", "missing", "folder", "float"],
)
def test_the_error_for_something_else_than_an_image_is_one_sentence(
    source: bytes | Path, message: str
) -> None:
    with pytest.raises(ImageError, match=message) as caught:
        open_image(source)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("side", [9_440, 20_000])  # below and above the limit of Pillow
def test_a_decompression_bomb_is_refused_by_its_header(side: int) -> None:
    bomb = encoded(Image.new("1", (side, side)), "PNG")
    assert len(bomb) < 100_000
    with pytest.raises(ImageError, match="more than the 89000000 pixels allowed"):
        open_image(bomb)


@pytest.mark.parametrize("aspect", ["squash", "keep"])
@pytest.mark.parametrize("size", [(500, 300), (300, 500), (256, 256), (40, 31), (1, 1), (333, 777)])
def test_equals_torchvision(size: tuple[int, int], aspect: str) -> None:
    image = picture(*size)
    reference = transforms.Compose(
        [
            transforms.Resize((256, 256) if aspect == "squash" else 256),
            transforms.CenterCrop(224),
            transforms.ToTensor(),
            transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
        ]
    )(image)
    actual = Preprocess(aspect=aspect)([image])[0]  # type: ignore[arg-type]
    assert actual.dtype == np.float32
    torch.testing.assert_close(torch.from_numpy(actual), reference, atol=1e-5, rtol=1e-5)


def test_a_sliver_is_cut_before_it_is_enlarged() -> None:
    """An image of 1 x 80,000 pixels would otherwise become 256 x 20 million."""
    resized = Preprocess(aspect="keep").resized(Image.new("RGB", (1, 80_000)))
    assert resized.size == (256, 8 * 256)


@pytest.mark.parametrize("kind", ["ICO", "EPS", "PCX", "TGA"])
def test_formats_beyond_the_list_are_refused(kind: str) -> None:
    with pytest.raises(ImageError, match="not an image in a known format"):
        open_image(encoded(picture(16, 16), kind))


def test_bgr_of_0_to_255() -> None:
    image = Image.new("RGB", (8, 8), (200, 150, 100))
    (x,) = BACKBONES["bn-inception"].preprocess([image])
    assert x.shape == (3, 224, 224)
    np.testing.assert_allclose(x[:, 0, 0], [100 - 104, 150 - 117, 200 - 128], atol=1e-4)


@pytest.mark.parametrize("name", BACKBONES)
def test_survives_json(name: str) -> None:
    preprocess = BACKBONES[name].preprocess
    assert Preprocess.from_dict(json.loads(json.dumps(preprocess.to_dict()))) == preprocess


def test_wrong_settings_are_named() -> None:
    with pytest.raises(CouceError, match="crop"):
        Preprocess(resize=100, crop=224)
    with pytest.raises(CouceError, match="channels must be RGB or BGR, not 'GBR'"):
        Preprocess(channels="GBR")  # type: ignore[arg-type]
    with pytest.raises(CouceError, match="not a description"):
        Preprocess.from_dict({"resise": 3})
