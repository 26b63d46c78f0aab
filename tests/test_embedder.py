"""The embedder: where it runs, what it refuses, and that its embeddings are those of the model."""

import os
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto
from PIL import Image

from couce.embedder import Embedder, Source, open_on
from couce.errors import CouceError
from couce.preprocess import ImageError, Preprocess

MakeModel = Callable[..., Path]
CROP, DIM = 16, 8


def picture(seed: int, size: tuple[int, int] = (24, 18)) -> Image.Image:
    pixels = np.random.default_rng(seed).integers(0, 256, (*size[::-1], 3), np.uint8)
    return Image.fromarray(pixels)


def as_bytes(image: Image.Image, kind: str = "PNG") -> bytes:
    file = BytesIO()
    image.save(file, kind)
    return file.getvalue()


def by_hand(path: Path, images: list[Image.Image]) -> np.ndarray:
    """The embeddings of the uint8 model of the fixture, computed with numpy."""
    (matrix,) = onnx.load(path).graph.initializer
    pixels = [np.asarray(i.resize((CROP, CROP), Image.Resampling.BILINEAR)) for i in images]
    rows = np.stack(pixels).reshape(len(images), -1) @ onnx.numpy_helper.to_array(matrix)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def test_bytes_paths_and_images_in_order(make_model: MakeModel, tmp_path: Path) -> None:
    images = [picture(seed) for seed in range(7)]
    images[1].save(tmp_path / "one.png")
    sources: list[Source] = [
        as_bytes(images[0]),
        tmp_path / "one.png",
        str(tmp_path / "one.png"),
        images[2],
    ]
    sources += [lambda: as_bytes(images[3]), *images[4:]]
    embedder = Embedder(make_model(), batch=3)
    rows = embedder.embed(sources)
    expected = by_hand(embedder.path, [images[i] for i in (0, 1, 1, 2, 3, 4, 5, 6)])
    assert rows.dtype == np.float32
    np.testing.assert_allclose(rows, expected, atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-6)
    assert embedder.embed([]).shape == (0, DIM)
    assert embedder.info is not None
    assert embedder.info.backbone == "projection"


def test_upright_and_in_any_mode(make_model: MakeModel) -> None:
    embedder = Embedder(make_model())
    image = picture(0)
    exif = Image.Exif()
    exif[0x0112] = 3  # upside down
    turned = BytesIO()
    image.rotate(180).save(turned, "PNG", exif=exif)
    rows = embedder.embed([image, turned.getvalue(), image.convert("RGBA")])
    np.testing.assert_allclose(rows[1:], rows[[0, 0]], atol=1e-6)


def test_a_stream_has_an_error_in_the_place_of_a_broken_image(
    make_model: MakeModel, tmp_path: Path
) -> None:
    whole = as_bytes(picture(0, (300, 300)), "JPEG")
    sources: list[bytes | Path] = [
        whole,
        whole[: len(whole) // 2],
        b"no image",
        tmp_path / "absent.png",
        whole,
    ]
    embedder = Embedder(make_model(), batch=2)
    found = list(embedder.stream(sources))
    assert [isinstance(each, ImageError) for each in found] == [False, True, True, True, False]
    assert "absent.png" in str(found[3])
    np.testing.assert_array_equal(found[0], found[4])
    with pytest.raises(ImageError, match="damaged"):
        embedder.embed(sources)


def test_a_stream_takes_no_more_than_two_batches_ahead(make_model: MakeModel) -> None:
    taken = 0

    def endless() -> Iterator[Image.Image]:
        nonlocal taken
        while True:
            taken += 1
            yield picture(taken)

    stream = Embedder(make_model(), batch=4).stream(endless())
    for _ in range(5):
        next(stream)
    assert taken <= 5 + 2 * 4
    stream.close()  # type: ignore[attr-defined]


def test_a_limit_of_pixels(make_model: MakeModel) -> None:
    with pytest.raises(ImageError, match="100 pixels allowed"):
        Embedder(make_model(), max_pixels=100).embed([as_bytes(picture(0))])


@pytest.mark.parametrize("batch", ["batch", 1, 4])
@pytest.mark.parametrize("kind", [TensorProto.FLOAT, TensorProto.FLOAT16])
def test_a_foreign_model_with_given_preprocessing(
    make_model: MakeModel, batch: int | str, kind: int
) -> None:
    """Its input is float (N, 3, H, W), normalised before. A fixed batch is padded."""
    path = make_model(describe=False, batch=batch, kind=kind)
    preprocess = Preprocess.parse(["resize=20", "crop=16", "channels=BGR", "mean=0.5,0.4,0.3"])
    images = [picture(seed) for seed in range(6)]
    embedder = Embedder(path, preprocess=preprocess)
    session = onnxruntime.InferenceSession(path)
    rows = []
    for image in images:
        fed = preprocess([image]).astype(onnx.helper.tensor_dtype_to_np_dtype(kind))
        fed = np.repeat(fed, batch, axis=0) if isinstance(batch, int) else fed
        rows.append(session.run(None, {"image": fed})[0][0])
    expected = np.stack(rows) / np.linalg.norm(rows, axis=1, keepdims=True)
    np.testing.assert_allclose(embedder.embed(images), expected, atol=1e-5)
    assert embedder.info is None


@pytest.mark.parametrize(
    ("options", "given", "words"),
    [
        ({"describe": False}, None, "--preprocess resize=256"),
        ({}, Preprocess(resize=16, crop=16), "describes its own preprocessing"),
        ({"describe": False}, Preprocess(), r"its input is \[16, 16, 3\], but the preprocessing"),
        ({"format": 7}, None, "the format 7, but this version of CouCE reads the format 1"),
        ({"dim": 9}, None, "embeddings of 8 dimensions, but its description says 9"),
        ({"preprocess": {"cake": 1}}, None, "not a description of preprocessing"),
        (
            {"describe": False, "kind": TensorProto.INT64},
            Preprocess(16, 16),
            "images must be uint8",
        ),
        (
            {"describe": False},
            Preprocess(16, 16, mean=(9, 9, 9)),
            "scale, mean and std have no effect",
        ),
        ({"input": "float"}, None, r"its input is tensor\(uint8\), but its description says float"),
        ({"preprocess": {"resize": 16.5, "crop": 16}}, None, "must be whole numbers of pixels"),
        ({"preprocess": {"resize": 10**7, "crop": 16}}, None, "at most 4096 pixels"),
        ({"preprocess": {"std": [0, 1, 1]}}, None, "scale and std must be above 0"),
    ],
)
def test_models_that_do_not_fit(
    make_model: MakeModel, options: dict[str, object], given: Preprocess | None, words: str
) -> None:
    with pytest.raises(CouceError, match=words):
        Embedder(make_model(**options), preprocess=given)


def test_a_foreign_model_of_pixels_gets_its_channel_order(make_model: MakeModel) -> None:
    path = make_model(describe=False)
    image = picture(0)
    turned = Image.fromarray(np.asarray(image)[..., ::-1])
    rgb = Embedder(path, preprocess=Preprocess(16, 16)).embed([turned])
    bgr = Embedder(path, preprocess=Preprocess(16, 16, channels="BGR")).embed([image])
    np.testing.assert_array_equal(rgb, bgr)


@pytest.mark.parametrize(("value", "words"), [(0.0, "zero or not finite"), (np.nan, "not finite")])
def test_embeddings_without_a_direction_are_an_error(
    make_model: MakeModel, value: float, words: str
) -> None:
    path = make_model()
    model = onnx.load(path)
    matrix = np.full((CROP * CROP * 3, DIM), value, np.float32)
    model.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(matrix, "matrix"))
    onnx.save(model, path)
    with pytest.raises(CouceError, match=words):
        Embedder(path).embed([picture(0)])


def test_a_model_that_fails_on_its_batch(make_model: MakeModel) -> None:
    """The graph declares a free batch size, but a constant in it is for one image."""
    path = make_model()
    model = onnx.load(path)
    shape = onnx.numpy_helper.from_array(np.array([1, DIM]), "shape")
    model.graph.initializer.append(shape)
    model.graph.node[-1].output[0] = "before"
    model.graph.node.append(onnx.helper.make_node("Reshape", ["before", "shape"], ["embedding"]))
    onnx.save(model, path)
    embedder = Embedder(path)
    assert embedder.embed([picture(0)]).shape == (1, DIM)
    with pytest.raises(CouceError, match="fails on 2 images"):
        embedder.embed([picture(0), picture(1)])


@pytest.mark.parametrize("options", [{"batch": 0}, {"threads": 0}, {"threads": -1}])
def test_nonsense_settings(make_model: MakeModel, options: dict[str, int]) -> None:
    with pytest.raises(CouceError, match="at least 1"):
        Embedder(make_model(), **options)  # type: ignore[arg-type]


def test_with_other_threads_it_is_the_same_model(make_model: MakeModel) -> None:
    embedder = Embedder(make_model(), threads=2)
    alone = embedder.with_threads(1)
    options = [each._session.get_session_options() for each in (embedder, alone)]
    assert [each.intra_op_num_threads for each in options] == [2, 1]
    pixels = np.random.default_rng(0).integers(0, 256, (3, CROP, CROP, 3), np.uint8)
    np.testing.assert_allclose(alone.run(pixels), embedder.run(pixels), atol=1e-6)
    make_model(backbone="another")
    with pytest.raises(CouceError, match="was replaced"):
        embedder.with_threads(1)


def test_files_that_are_no_models(make_model: MakeModel, tmp_path: Path) -> None:
    whole = make_model().read_bytes()
    (tmp_path / "cut.onnx").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "empty.onnx").write_bytes(b"")
    (tmp_path / "picture.onnx").write_bytes(as_bytes(picture(0)))
    (tmp_path / "folder.onnx").mkdir()
    for name in ("cut", "empty", "picture", "folder", "absent"):
        with pytest.raises(CouceError) as raised:
            Embedder(tmp_path / f"{name}.onnx")
        assert f"{name}.onnx" in str(raised.value)
        assert "\n" not in str(raised.value)


@pytest.mark.parametrize("location", ["/etc/passwd", "../secret.bin", "weights.bin"])
@pytest.mark.parametrize("place", ["initializer", "attribute", "subgraph"])
def test_a_model_that_refers_to_other_files_is_refused_before_it_is_opened(
    make_model: MakeModel, location: str, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_model()
    model = onnx.load(path)
    tensor = onnx.TensorProto(
        name="stolen", dims=[4], data_type=TensorProto.UINT8, data_location=TensorProto.EXTERNAL
    )
    tensor.external_data.add(key="location", value=location)
    if place == "initializer":
        model.graph.initializer.append(tensor)
    elif place == "attribute":
        node = onnx.helper.make_node("Constant", [], ["stolen"], value=tensor)
        model.graph.node.append(node)
    else:
        graph = onnx.GraphProto(name="inner", initializer=[tensor])
        model.graph.node.append(
            onnx.helper.make_node("If", ["image"], ["x"], then_branch=graph, else_branch=graph)
        )
    path.write_bytes(model.SerializeToString())
    monkeypatch.setattr(onnxruntime, "InferenceSession", None)
    with pytest.raises(CouceError, match="has its weights in other files"):
        Embedder(path)


def test_a_field_that_other_parsers_read_differently_is_refused(make_model: MakeModel) -> None:
    """protobuf cuts keys to 32 bits, so a graph behind a longer key would escape the check."""
    path = make_model()
    graph = onnx.load(path).graph.SerializeToString()

    def varint(value: int) -> bytes:
        parts = []
        while value > 127:
            parts.append(value & 127 | 128)
            value >>= 7
        return bytes([*parts, value])

    hidden = varint(7 << 3 | 2 | 1 << 32) + varint(len(graph)) + graph
    path.write_bytes(path.read_bytes() + hidden)
    with pytest.raises(CouceError, match="is not an ONNX file"):
        Embedder(path)


def test_a_damaged_model_is_one_sentence(make_model: MakeModel, tmp_path: Path) -> None:
    """After bit flips outside of the weights, the model opens, or the error is one sentence."""
    whole = bytearray(make_model().read_bytes())
    rng = np.random.default_rng(0)
    errors = []
    for _ in range(150):
        damaged = bytearray(whole)
        for at in rng.integers(0, len(whole), 3):
            at = at % 600 if rng.random() < 0.5 else -(at % 600) - 1
            damaged[at] ^= 1 << int(rng.integers(8))
        (tmp_path / "damaged.onnx").write_bytes(damaged)
        try:
            Embedder(tmp_path / "damaged.onnx")
        except CouceError as error:
            errors.append(str(error))
    assert len(errors) > 50
    assert not [error for error in errors if "\n" in error]


class FakeSession:
    """A session that reports its providers as one of onnxruntime would, with or without a GPU."""

    def __init__(self, providers: list[str]) -> None:
        self._providers = providers

    def get_providers(self) -> list[str]:
        return self._providers


CPU, CUDA, TENSORRT = (f"{name}ExecutionProvider" for name in ("CPU", "CUDA", "Tensorrt"))


@pytest.mark.parametrize(
    ("wanted", "available", "working", "chosen"),
    [
        ("auto", [TENSORRT, CUDA, CPU], {CUDA, TENSORRT}, "cuda"),
        ("auto", [TENSORRT, CUDA, CPU], {TENSORRT}, "tensorrt"),
        ("auto", [TENSORRT, CUDA, CPU], set(), "cpu"),  # the silent fall-back
        ("auto", [CPU], set(), "cpu"),
        ("cuda", [TENSORRT, CUDA, CPU], {CUDA}, "cuda"),
        ("cpu", [TENSORRT, CUDA, CPU], {CUDA}, "cpu"),
        ("cuda", [TENSORRT, CUDA, CPU], set(), None),
        ("cuda", [CPU], set(), None),
        ("tensorrt", [TENSORRT, CUDA, CPU], {CUDA}, None),
    ],
)
@pytest.mark.parametrize("raises", [False, True])
def test_a_provider_counts_only_if_the_session_reports_it(
    wanted: str, available: list[str], working: set[str], chosen: str | None, raises: bool
) -> None:
    def open_session(providers: list[str]) -> FakeSession:
        if raises and providers[0] not in (*working, CPU):
            raise RuntimeError("libcudart.so is missing")
        return FakeSession([each for each in providers if each in working or each == CPU])

    if chosen is None:
        with pytest.raises(CouceError, match=f"{wanted} does not work here; `couce doctor`"):
            open_on(wanted, available, open_session)
    else:
        name, session = open_on(wanted, available, open_session)
        assert name == chosen
        assert {"cpu": CPU, "cuda": CUDA, "tensorrt": TENSORRT}[chosen] in session.get_providers()


def test_providers_of_this_machine(make_model: MakeModel) -> None:
    with pytest.raises(CouceError, match="known: auto, cuda, tensorrt, cpu"):
        Embedder(make_model(), provider="gpu")
    embedder = Embedder(make_model())
    wanted = [CUDA, CPU] if CUDA in onnxruntime.get_available_providers() else [CPU]
    session = onnxruntime.InferenceSession(make_model(), providers=wanted)
    assert embedder.provider == ("cuda" if CUDA in session.get_providers() else "cpu")
    assert embedder.threads <= len(os.sched_getaffinity(0))
