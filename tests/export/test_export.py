"""Real exports: onnxruntime against torch, the content of the file, and refused calls."""

import hashlib
import json
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch.utils.flop_counter import FlopCounterMode

from couce import checkpoint
from couce.backbones import build_backbone
from couce.cli import main
from couce.data.demo import draw, examples
from couce.embedder import Embedder
from couce.errors import CouceError
from couce.export import certificate, exporting
from couce.export import comparison as comparing
from couce.export.comparison import RetrievalSet
from couce.export.exporting import write_model
from couce.export.graph import PlainModel, to_onnx
from couce.export.parity import _first_difference, _same_neighbours
from couce.export.quantisation import harm_by_layer, layers_of, to_int8
from couce.export.structure import differences, structure
from couce.export.write import describe
from couce.losses import LOSSES
from couce.machine.timing import compare_times
from couce.method import CouCE
from couce.network import EmbeddingNetwork, Normalise
from couce.preprocess import ImageSource, Preprocess

DIM, CAPACITY = 24, 2048


@pytest.fixture(scope="module")
def pictures() -> list[Image.Image]:
    return [draw(example) for example in examples(0.9, per_class=1, seed=3)]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory, pictures: list[Image.Image]) -> Path:
    return trained(tmp_path_factory.mktemp("run") / "ckpt.pt", pictures)


def trained(path: Path, pictures: list[Image.Image], **preprocessing: Any) -> Path:
    """A checkpoint after some steps with all of CouCE, as training writes it."""
    torch.manual_seed(0)
    network = EmbeddingNetwork(build_backbone("tiny"), DIM)
    preprocess = Preprocess(resize=72, crop=64, **preprocessing)
    objective = CouCE(LOSSES["proxy-an"](num_classes=8, dim=DIM))
    optimiser = torch.optim.Adam([*network.parameters(), *objective.parameters()], lr=1e-3)
    images = torch.from_numpy(preprocess(pictures[:32]))
    for _ in range(3):
        m, m_tilde = network.views(images, objective.intervention)
        optimiser.zero_grad()
        objective(m, torch.arange(32) // 4, m_tilde).total.backward()
        optimiser.step()
    content = {
        "model": checkpoint.describe_network(network, preprocess),
        "settings": {"weights": "/home/me/start.pth"},
        "data": {"name": "/home/me/birds"},
        "metrics": {"R@1": 0.5},
        "network": network.state_dict(),
        "objective": objective.state_dict(),
    }
    checkpoint.save(path, content)
    return path


def named(images: Sequence[ImageSource]) -> dict[str, ImageSource]:
    return {str(i) if isinstance(i, Path) else f"picture {n}": i for n, i in enumerate(images)}


def embed_by_torch(path: Path, pictures: list[Image.Image]) -> np.ndarray:
    """The embeddings of the trained network, computed without the code of the export."""
    network, preprocess, _ = checkpoint.load_network(path)
    network.eval()
    with torch.inference_mode():
        rows = network(torch.from_numpy(preprocess(pictures)))
    return F.normalize(rows, dim=1).numpy()


@pytest.mark.parametrize("kind", ["uint8", "float"])
@pytest.mark.parametrize("channels", ["RGB", "BGR"])
def test_the_file_gives_what_the_network_gives(
    tmp_path: Path, pictures: list[Image.Image], kind: str, channels: str
) -> None:
    path = trained(tmp_path / "ckpt.pt", pictures, channels=channels, scale=255.0, mean=(9, 99, 50))
    done = write_model(path, tmp_path / "model.onnx", named(pictures[:40]), kind)
    assert done.parity.images == 40
    assert done.parity.cosine > 0.9999
    expected = embed_by_torch(path, pictures)
    rows = Embedder(tmp_path / "model.onnx").embed(pictures)
    assert (rows * expected).sum(axis=1).min() > 0.9999


def test_three_lines_of_plain_onnxruntime(
    saved: Path, tmp_path: Path, pictures: list[Image.Image]
) -> None:
    write_model(saved, tmp_path / "model.onnx", named(pictures[:8]))
    # The three lines of docs/export.md, as they are there.
    text = (Path(__file__).parents[2] / "docs" / "export.md").read_text()
    code = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)[0]
    images = np.stack([np.asarray(picture) for picture in pictures[:5]])
    names: dict[str, Any] = {"images": images}
    code = code.replace('"model.onnx"', repr(str(tmp_path / "model.onnx")))
    exec(code, names)  # noqa: S102 (our own documentation)
    assert len([line for line in code.strip().splitlines() if line.strip()]) == 3
    assert names["rows"].shape == (5, DIM)
    np.testing.assert_allclose(np.linalg.norm(names["rows"], axis=1), 1, atol=1e-5)


def test_what_the_file_holds(saved: Path, tmp_path: Path, pictures: list[Image.Image]) -> None:
    target = tmp_path / "model.onnx"
    write_model(saved, target, named(pictures[:8]))
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]
    model = onnx.load(target)
    onnx.checker.check_model(model, full_check=True)
    (image,), (embedding,) = model.graph.input, model.graph.output
    assert (image.name, embedding.name) == ("image", "embedding")
    shape = [dim.dim_param or dim.dim_value for dim in image.type.tensor_type.shape.dim]
    assert shape == ["batch", 64, 64, 3]
    # The only values are those of the convolutions (with the BatchNorm after them folded into
    # weight and bias), of the head, and the six constants of the normalisation.
    network, _, content = checkpoint.load_network(saved)
    convolutions = [m for m in network.modules() if isinstance(m, torch.nn.Conv2d)]
    expected = sum(c.weight.numel() + c.out_channels for c in convolutions)
    expected += sum(p.numel() for p in network.head.parameters()) + 6
    assert structure(model).parameters == expected
    dictionary = content["objective"]["odba.dictionary"]
    assert dictionary.shape == (CAPACITY, DIM)
    assert target.stat().st_size < 4 * (expected + dictionary.numel())
    # The file contains no paths of the machine that made it.
    text = target.read_bytes()
    for secret in (b"/home/me", b"site-packages", str(Path.cwd()).encode(), b".py"):
        assert secret not in text
    info = Embedder(target).info
    assert info is not None
    assert info.dataset == "birds"
    assert info.metrics == {"R@1": 0.5}
    assert "'start.pth'" in info.licence
    assert re.fullmatch("[0-9a-f]{64}", info.weights)


def test_operations_are_counted_as_torch_counts_them(saved: Path) -> None:
    network, preprocess, _ = checkpoint.load_network(saved)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        network.eval()(torch.randn(1, 3, 64, 64))
    assert structure(to_onnx(network, preprocess, "uint8")).flops == counter.get_total_flops()


@pytest.fixture
def damaged_export(monkeypatch: pytest.MonkeyPatch) -> str:
    """Makes the exporter write wrong weights of one layer. Returns the name of this layer."""
    layer = "backbone.stage2.layer4"

    def wrong(*arguments: Any) -> onnx.ModelProto:
        proto = to_onnx(*arguments)
        node = next(n for n in proto.graph.node if n.op_type == "Conv" and n.name.startswith(layer))
        weight = next(t for t in proto.graph.initializer if t.name == node.input[1])
        values = onnx.numpy_helper.to_array(weight)
        weight.CopyFrom(onnx.numpy_helper.from_array(-values, weight.name))
        return proto

    monkeypatch.setattr(exporting, "to_onnx", wrong)
    return layer


def test_a_difference_writes_nothing_and_names_image_and_layer(
    saved: Path,
    tmp_path: Path,
    pictures: list[Image.Image],
    damaged_export: str,
    messages: list[str],
) -> None:
    target = tmp_path / "model.onnx"
    target.write_bytes(b"the one of before")
    for n, picture in enumerate(pictures[:9]):
        picture.save(tmp_path / f"{n}.png")
    images = [tmp_path / f"{n}.png" for n in range(9)]
    (tmp_path / "dead.png").write_bytes(b"no picture")
    with pytest.raises(
        CouceError, match=r"\d\.png has a cosine of .* nothing was written"
    ) as raised:
        write_model(saved, target, named([*images, tmp_path / "dead.png"]))
    assert damaged_export in str(raised.value)
    assert len([line for line in messages if "dead.png is not an image" in line]) == 1
    assert target.read_bytes() == b"the one of before"
    assert not list(tmp_path.glob("*.part"))


def test_the_layer_is_found_where_others_work_in_place(pictures: list[Image.Image]) -> None:
    """The ReLUs of ResNet overwrite their inputs."""
    torch.manual_seed(0)
    network = EmbeddingNetwork(build_backbone("resnet18"), DIM).eval()
    preprocess = Preprocess(resize=72, crop=64)
    model = PlainModel(network, preprocess, "uint8").eval()
    proto = to_onnx(network, preprocess, "uint8")
    feed = preprocess.pixels(pictures[0])[None]
    assert _first_difference(model, proto, feed)[1] < 1e-4
    node = next(n for n in proto.graph.node if n.name.startswith("backbone.stage2.layer4.1"))
    weight = next(t for t in proto.graph.initializer if t.name == node.input[1])
    values = onnx.numpy_helper.to_array(weight)
    weight.CopyFrom(onnx.numpy_helper.from_array(-values, weight.name))
    layer, difference = _first_difference(model, proto, feed)
    assert layer == "backbone.stage2.layer4"
    assert difference > 1e-3


def test_a_model_that_half_precision_breaks_is_not_written(
    tmp_path: Path, pictures: list[Image.Image]
) -> None:
    """These embeddings are larger than the largest number of float16."""
    path = trained(tmp_path / "ckpt.pt", pictures)
    content = checkpoint.load(path)
    content["network"]["head.weight"] *= 1e7
    checkpoint.save(path, content)
    with pytest.raises(CouceError, match="zero or not finite"):
        write_model(path, tmp_path / "model.onnx", named(pictures[:8]), precision="fp16")
    assert not (tmp_path / "model.onnx").exists()


def test_neighbours_may_differ_by_a_tie_alone() -> None:
    expected = np.array([[1, 0], [0.8, 0.6], [0.8, -0.6], [-1, 0]], np.float32)
    turned = np.array([[1, 0], [0.8, 0.6], [0.8000001, -0.6], [-1, 0]], np.float32)
    swapped = np.array([[1, 0], [0.8, 0.6], [0.8, -0.6], [0.9, 0.43]], np.float32)
    assert _same_neighbours(turned, expected).all()
    assert _same_neighbours(swapped, expected).tolist() == [False, False, True, True]


def test_structures_differ_by_nodes_attributes_shapes_and_steering_values(saved: Path) -> None:
    network, preprocess, _ = checkpoint.load_network(saved)
    proto = to_onnx(network, preprocess, "uint8")
    whole = structure(proto)
    assert not differences(whole, structure(proto))

    def changed(change: Callable[[onnx.GraphProto], None]) -> list[str]:
        copy = onnx.ModelProto()
        copy.CopyFrom(proto)
        change(copy.graph)
        return differences(structure(copy), whole)

    def attribute(graph: onnx.GraphProto) -> None:
        node = next(n for n in graph.node if n.op_type == "Conv")
        next(a for a in node.attribute if a.name == "strides").ints[:] = [1, 1]

    def extra_node(graph: onnx.GraphProto) -> None:
        last = graph.node[-1]
        last.output[0] = "before"
        graph.node.append(onnx.helper.make_node("Identity", ["before"], ["embedding"]))

    def axes(graph: onnx.GraphProto) -> None:
        node = next(n for n in graph.node if n.op_type == "ReduceMean")
        tensor = next(t for t in graph.initializer if t.name == node.input[1])
        tensor.CopyFrom(onnx.numpy_helper.from_array(np.array([-1, 2]), tensor.name))

    def weights(graph: onnx.GraphProto) -> None:
        for tensor in graph.initializer:
            values = onnx.numpy_helper.to_array(tensor)
            if values.dtype == np.float32 and values.size > 1:
                tensor.CopyFrom(onnx.numpy_helper.from_array(values * 2 + 1, tensor.name))

    assert "Conv" in changed(attribute)[0]
    assert f"{len(whole.nodes) + 1} nodes instead of {len(whole.nodes)}" in changed(extra_node)
    assert changed(axes)
    assert not changed(weights)  # the values of weights are no part of the structure

    def shared(graph: onnx.GraphProto) -> None:
        """Stores equal weights once, as the exporter does."""
        biases = [n.input[2] for n in graph.node if n.op_type == "Conv"]
        sizes = {t.name: t.dims[0] for t in graph.initializer if len(t.dims) == 1}
        first = biases[0]
        for node in graph.node:
            if node.op_type == "Conv" and sizes[node.input[2]] == sizes[first]:
                node.input[2] = first
        kept = [t for t in graph.initializer if any(t.name in n.input for n in graph.node)]
        assert len(kept) < len(graph.initializer)
        del graph.initializer[:]
        graph.initializer.extend(kept)

    assert not changed(shared)


def test_a_certificate(saved: Path, tmp_path: Path, pictures: list[Image.Image]) -> None:
    target = tmp_path / "model.onnx"
    write_model(saved, target, named(pictures[:8]), certified=True)
    content = json.loads((tmp_path / "model.certificate.json").read_text())
    assert content["sha256"] == hashlib.sha256(target.read_bytes()).hexdigest()
    rows = {row["name"]: row for row in content["rows"]}
    assert list(rows) == ["model.onnx", *certificate.ROWS, certificate.CONTROL]
    assert len({row["structure"]["sha256"] for row in rows.values()}) == 1
    # The proxies are always left out; with ODBA also the dictionary, its statistics and counters.
    assert rows["base"]["left_out"] == 2 * DIM
    assert rows["CouCE, K = 8192"]["left_out"] == 2 * DIM + 8192 * DIM + 3 * DIM + 3
    page = (tmp_path / "model.certificate.html").read_text()
    assert "They are identical" in page
    assert "<td>CouCE, K = 4096</td>" in page

    # Another export without a certificate removes the old one, which is of another model.
    write_model(saved, target, named(pictures[:8]), "float")
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]


def test_times_are_compared_turn_by_turn() -> None:
    """A machine that becomes slower half-way slows both. An outlier does not move the median."""
    base = [0.010] * 20 + [0.030] * 20
    times = [1.1 * each for each in base]
    times[3] = 1.0
    ms, ratio, low, high = compare_times(times, base)
    assert ms == pytest.approx(22, abs=11.1)
    assert ratio == low == high == pytest.approx(1.1)
    noisy = [each * (1 + 0.1 * (n % 3 - 1)) for n, each in enumerate(base)]
    _, ratio, low, high = compare_times(noisy, base)
    assert ratio == pytest.approx(1.0)
    assert low <= 1 <= high


def test_a_graph_that_is_not_base_gets_no_certificate(
    saved: Path, tmp_path: Path, pictures: list[Image.Image], monkeypatch: pytest.MonkeyPatch
) -> None:
    def with_max_pooling(*arguments: Any) -> Any:
        network, preprocess, content = checkpoint.load_network(*arguments)
        network.pooling = "avg+max"
        return network, preprocess, content

    monkeypatch.setattr(exporting, "load_network", with_max_pooling)
    with pytest.raises(CouceError, match=r"no certificate: the graph of base\.onnx is not that of"):
        write_model(saved, tmp_path / "base.onnx", named(pictures[:8]), certified=True)
    assert not list(tmp_path.iterdir())


def test_int8_and_fp16_say_what_they_cost(
    saved: Path,
    tmp_path: Path,
    pictures: list[Image.Image],
    messages: list[str],
) -> None:
    paths = []
    for n, picture in enumerate(pictures):
        paths.append(tmp_path / f"{n}.png")
        picture.save(paths[-1])
    labelled = RetrievalSet("pictures", paths, np.arange(len(paths)) // 8)
    write_model(saved, tmp_path / "fp32.onnx", named(paths[:8]))
    plain = Embedder(tmp_path / "fp32.onnx").embed(paths)
    for precision, cosine, share in (("int8", 0.98, 0.45), ("fp16", 0.999, 0.6)):
        messages.clear()
        target = tmp_path / f"{precision}.onnx"
        done = write_model(
            saved,
            target,
            named(paths[:8]),
            precision=precision,
            calibrate=paths,
            labelled=labelled,
        )
        embedder = Embedder(target)
        assert embedder.info is not None
        assert embedder.info.precision == precision
        assert (embedder.embed(paths) * plain).sum(axis=1).min() > cosine
        assert target.stat().st_size < share * (tmp_path / "fp32.onnx").stat().st_size
        assert done.lost is not None
        assert done.lost["R@1"] <= comparing.MOST_LOST
        assert any(f"{precision}: " in line and "times the images/s" in line for line in messages)
    operators = {node.op_type for node in onnx.load(tmp_path / "int8.onnx").graph.node}
    assert {"QuantizeLinear", "DequantizeLinear"} <= operators


def test_the_layer_that_8_bits_harm_is_found_and_skipped(
    saved: Path, pictures: list[Image.Image]
) -> None:
    """One channel is scaled by 1000 and back in the next layer: the same function in floats."""
    network, preprocess, _ = checkpoint.load_network(saved)
    block: Any = network.backbone.stage2.layer4
    with torch.no_grad():
        block.body[1].weight[0] *= 1000
        block.body[1].bias[0] *= 1000
        block.body[3].weight[:, 0] /= 1000
    model = PlainModel(network, preprocess, "uint8").eval()
    proto = to_onnx(network, preprocess, "uint8")
    feeds = np.stack([preprocess.pixels(picture) for picture in pictures[:16]])
    assert "backbone.stage2.layer4" in layers_of(proto)
    harm = harm_by_layer(proto, feeds, feeds, comparing._run)
    assert next(iter(harm)) == "backbone.stage2.layer4"
    with torch.inference_mode():
        expected = model(torch.from_numpy(feeds)).numpy()
    turned = [
        1 - float((comparing._run(each, feeds) * expected).sum(axis=1).mean())
        for each in (to_int8(proto, feeds), to_int8(proto, feeds, ["backbone.stage2.layer4"]))
    ]
    assert turned[1] < turned[0] / 4


def test_layers_are_skipped_until_little_is_lost(
    saved: Path, pictures: list[Image.Image], messages: list[str]
) -> None:
    """Too much is lost twice. So the two worst layers stay in float32, and a message names them."""
    network, preprocess, content = checkpoint.load_network(saved)
    proto = to_onnx(network, preprocess, "uint8")
    feeds = np.stack([preprocess.pixels(picture) for picture in pictures[:8]])
    losses = [0.02, 0.01, 0.004]

    def comparison(_model: bytes, precision: str) -> dict[str, float]:
        assert precision == "int8"
        return {"R@1": losses.pop(0)}

    info = describe(content, preprocess, "uint8")
    written, lost = comparing.quantise(proto, feeds, info, comparison)
    assert lost == {"R@1": 0.004}
    worst = list(harm_by_layer(proto, feeds, feeds, comparing._run))[:2]
    assert messages[-1] == f"left in float32: {', '.join(worst)}"
    graph = onnx.load_from_string(written).graph
    weights = {tensor.name for tensor in graph.initializer}
    convolutions = [node for node in graph.node if node.op_type == "Conv"]
    # A quantised convolution gets its weights from a DequantizeLinear node.
    in_floats = {node.name for node in convolutions if node.input[1] in weights}
    assert in_floats == {n.name for n in convolutions if n.name.startswith(tuple(worst))}
    assert 0 < len(in_floats) < len(convolutions)


def test_normalise_in_graph_is_that_of_preprocess() -> None:
    preprocess = Preprocess(resize=8, crop=8, channels="BGR", scale=255.0, mean=(1.0, 2.0, 3.0))
    pixels = np.random.default_rng(0).integers(0, 256, (2, 8, 8, 3), np.uint8)
    graph = Normalise(preprocess)(torch.from_numpy(pixels)).numpy()
    np.testing.assert_allclose(graph, preprocess.normalise(pixels), rtol=1e-5, atol=1e-5)


def run(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "couce", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)


def test_commands_as_typed(saved: Path, tmp_path: Path, pictures: list[Image.Image]) -> None:
    (tmp_path / "ckpt.pt").write_bytes(saved.read_bytes())
    done = run("export", "ckpt.pt", "model.onnx", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""  # no messages of torch's exporter
    assert "Comparing on drawn images" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("Written to model.onnx. Next: couce ")
    done = run("export", "ckpt.pt", "other.onnx", "--dataset", "demo", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "drawn" not in done.stdout  # the images of the data set are used instead

    for n, picture in enumerate(pictures[:6]):
        folder = tmp_path / "gallery" / f"class {n % 2}"
        folder.mkdir(parents=True, exist_ok=True)
        picture.save(folder / f"{n}.png")
    (tmp_path / "gallery" / "class 0" / "broken.png").write_bytes(b"no picture")
    done = run("embed", "gallery", "-o", "vectors.npz", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "broken.png is not an image" in done.stderr
    with np.load(tmp_path / "vectors.npz") as arrays:
        assert arrays["embeddings"].shape == (6, DIM)
        assert arrays["labels"].tolist() == ["class 0"] * 3 + ["class 1"] * 3
    one = run("evaluate", "vectors.npz", cwd=tmp_path)
    (tmp_path / "gallery" / "class 0" / "broken.png").unlink()
    (tmp_path / "set").mkdir()
    for half in ("train", "test"):
        (tmp_path / "set" / half).symlink_to(tmp_path / "gallery")
    other = run("evaluate", "model.onnx", "set", cwd=tmp_path)
    assert one.returncode == other.returncode == 0, one.stderr + other.stderr
    metrics = [
        json.loads((tmp_path / f"{n}.metrics.json").read_text()) for n in ("vectors", "model")
    ]
    assert metrics[0] == pytest.approx(metrics[1])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["export", "absent.pt", "model.onnx"], "there is no checkpoint at absent.pt"),
        (["export", "notes.txt", "model.onnx"], "cannot be read as a checkpoint"),
        (["export", "ckpt.pt", "nowhere/model.onnx"], "there is no folder nowhere"),
        (["export", "ckpt.pt", "model.onnx", "--precision", "int4"], "known: fp32, fp16, int8"),
        (["export", "ckpt.pt", "model.onnx", "--precision", "int8"], "--calibrate"),
        (["export", "ckpt.pt", "model.onnx", "--input", "png"], "known: uint8, float"),
        (["export", "ckpt.pt", "model.onnx", "--dataset", "cubs"], "did you mean 'cub'"),
        (["export", "ckpt.pt", "ckpt.pt"], "the name of a model must end in .onnx"),
        (["export", "ckpt.pt", "m.onnx", "--certify", "--precision", "fp16"], "of the fp32 model"),
        (["export", "ckpt.pt", "m.onnx", "--calibrate", "."], "--calibrate is for int8"),
        (["export", "hi.pt", "model.onnx"], "hi.pt cannot be read as a checkpoint"),
        (["embed", ".", "-o", "notes.txt"], "must be an .npz file in an existing folder"),
        (["evaluate", "ckpt.pt", "--preprocess", "crop=8"], "--preprocess is for ONNX models"),
        (["embed", "."], "there is no model at model.onnx; `couce export` makes one"),
        (["embed", "absent", "--model", "ckpt.pt"], "ckpt.pt cannot be used as a model"),
        (["evaluate", "notes.onnx", "demo"], "there is no model at notes.onnx"),
    ],
)
def test_wrong_calls_are_sentences(
    arguments: list[str],
    words: str,
    saved: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "ckpt.pt").write_bytes(saved.read_bytes())
    (tmp_path / "notes.txt").write_text("no checkpoint")
    (tmp_path / "hi.pt").write_text("hi\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["couce", *arguments])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2
    assert words in capsys.readouterr().err
    assert not list(tmp_path.glob("*.onnx"))
    assert (tmp_path / "notes.txt").read_text() == "no checkpoint"


def test_the_exported_model_runs_at_its_stated_opset(saved: Path) -> None:
    network, preprocess, _ = checkpoint.load_network(saved)
    proto = to_onnx(network, preprocess, "float")
    assert [(o.domain, o.version) for o in proto.opset_import] == [("", 20)]
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    assert session.get_inputs()[0].type == "tensor(float)"
