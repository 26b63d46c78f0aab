import copy
import hashlib
import random
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from couce.backbones import BACKBONES, build_backbone
from couce.backbones.base import BackboneSpec
from couce.backbones.folding import frozen
from couce.errors import CouceError

SPLITS = [(name, split) for name, spec in BACKBONES.items() for split in spec.points]


@pytest.mark.parametrize(("name", "split"), SPLITS)
def test_channels_and_strides_are_what_a_forward_pass_gives(name: str, split: str) -> None:
    backbone = build_backbone(name, split).eval()
    pixels = backbone.preprocess.crop
    with torch.no_grad():
        hidden = backbone.stage1(torch.randn(1, 3, pixels, pixels))
        output = backbone.stage2(hidden)
    side = pixels // backbone.split_stride
    assert hidden.shape == (1, backbone.split_channels, side, side)
    side = pixels // backbone.stride
    assert output.shape == (1, backbone.channels, side, side)


@pytest.mark.parametrize("name", BACKBONES)
def test_the_cut_changes_nothing(name: str) -> None:
    torch.manual_seed(0)
    whole = BACKBONES[name].build()
    layers = torch.nn.Sequential(*copy.deepcopy(list(whole.values()))).eval()
    torch.manual_seed(0)
    backbone = build_backbone(name).eval()
    x = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        torch.testing.assert_close(backbone(x), layers(x))


@pytest.mark.parametrize("name", BACKBONES)
def test_a_frozen_stage_computes_the_same_without_batchnorm(name: str) -> None:
    torch.manual_seed(0)
    backbone = build_backbone(name)
    norms = [m for m in backbone.stage1.modules() if isinstance(m, torch.nn.BatchNorm2d)]
    for norm in norms:  # random values, as after training
        for key, tensor in norm.state_dict().items():
            if tensor.is_floating_point():
                low, high = (0.5, 1.5) if key in ("weight", "running_var") else (-0.5, 0.5)
                torch.nn.init.uniform_(tensor, low, high)
    before = copy.deepcopy(backbone.stage1.state_dict())
    stage = frozen(backbone.stage1.double())
    folded = stage.__self__  # type: ignore[attr-defined]
    assert norms
    assert not any(isinstance(m, torch.nn.BatchNorm2d) for m in folded.modules())
    images = torch.randn(2, 3, 64, 64, dtype=torch.float64)
    found = stage(images)
    assert not found.requires_grad
    torch.testing.assert_close(found, backbone.stage1.eval()(images))
    for key, value in backbone.stage1.float().state_dict().items():
        assert torch.equal(value, before[key]), key


def parameters(name: str) -> int:
    return sum(p.numel() for p in build_backbone(name).parameters())


def test_published_parameter_counts() -> None:
    """The published counts include a classifier of 1000 classes, which our backbones lack."""
    assert parameters("bn-inception") + 1000 * (1024 + 1) == 11_295_240
    assert parameters("resnet50") + 1000 * (2048 + 1) == 25_557_032
    assert parameters("resnet18") + 1000 * (512 + 1) == 11_689_512
    assert parameters("mobilenet_v2") + 1000 * (1280 + 1) == 3_504_872
    assert parameters("tiny") < 500_000


def test_bn_inception_maps_have_the_sizes_of_the_method() -> None:
    at = {
        split: build_backbone("bn-inception", split).stage1(torch.zeros(1, 3, 224, 224)).shape[1:]
        for split in ("3b", "4d", "5b")
    }
    assert at == {"3b": (320, 28, 28), "4d": (608, 14, 14), "5b": (1024, 7, 7)}


def test_bn_inception_reads_the_public_file(tmp_path: Path) -> None:
    """A file like the public one, with its names, (1, C) BatchNorm tensors and classifier."""
    original = build_backbone("bn-inception")
    branches = {
        "one": "1x1",
        "three.0": "3x3_reduce",
        "three.1": "3x3",
        "double_three.0": "double_3x3_reduce",
        "double_three.1": "double_3x3_1",
        "double_three.2": "double_3x3_2",
        "pool.1": "pool_proj",
    }
    stem = {"conv1": "conv1_7x7_s2", "conv2_reduce": "conv2_3x3_reduce", "conv2": "conv2_3x3"}
    public = {}
    for key, value in original.state_dict().items():
        layer, kind, field = key.removeprefix("stage1.").removeprefix("stage2.").rsplit(".", 2)
        if field == "num_batches_tracked":
            continue
        block, _, branch = layer.partition(".")
        name = stem[layer] if layer in stem else f"inception_{block}_{branches[branch]}"
        value = torch.randn_like(value)
        public[f"{name}{'_bn' if kind == 'bn' else ''}.{field}"] = (
            value.unsqueeze(0) if kind == "bn" else value
        )
    assert "inception_3a_1x1.weight" in public
    assert public["inception_5b_pool_proj_bn.running_var"].shape == (1, 128)
    public["last_linear.weight"] = torch.zeros(1000, 1024)
    public["last_linear.bias"] = torch.zeros(1000)
    torch.save(public, tmp_path / "bn.pth")
    loaded = build_backbone("bn-inception", pretrained=tmp_path / "bn.pth").state_dict()
    assert torch.equal(loaded["stage1.conv1.conv.weight"], public["conv1_7x7_s2.weight"])
    assert torch.equal(
        loaded["stage2.5b.pool.1.bn.running_var"],
        public["inception_5b_pool_proj_bn.running_var"][0],
    )


def test_bn_inception_wants_bgr_of_0_to_255() -> None:
    preprocess = build_backbone("bn-inception").preprocess.to_dict()
    assert preprocess["channels"] == "BGR"
    assert (preprocess["scale"], preprocess["std"]) == (255, (1, 1, 1))
    assert preprocess["mean"] == (104, 117, 128)


def public_state(name: str) -> dict[str, torch.Tensor]:
    """The state dict of torchvision's model with random weights."""
    import torchvision

    state: dict[str, torch.Tensor] = getattr(torchvision.models, name)().state_dict()
    return state


@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v2"])
@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_files_of_torchvision_fit(name: str, suffix: str, tmp_path: Path) -> None:
    state = public_state(name)
    path = tmp_path / f"weights{suffix}"
    if suffix == ".pth":
        torch.save(state, path)
    else:  # in half precision and without the classifier, like many such files
        kept = {k: v for k, v in state.items() if not k.startswith(("fc.", "classifier."))}
        save_file({k: v.half() if v.is_floating_point() else v for k, v in kept.items()}, path)
    loaded = build_backbone(name, pretrained=path)
    first = "conv1.weight" if name == "resnet18" else "features.0.0.weight"
    expected = state[first] if suffix == ".pth" else state[first].half().float()
    assert torch.equal(next(iter(loaded.parameters())), expected)


def test_a_file_that_does_not_fit_names_the_first_keys(tmp_path: Path) -> None:
    state = public_state("resnet18")
    path = tmp_path / "w.pth"
    torch.save({f"module.{k}": v for k, v in state.items()}, path)
    with pytest.raises(
        CouceError, match=r"missing conv1.weight, .* unexpected module.conv1.weight"
    ):
        build_backbone("resnet18", pretrained=path)
    del state["layer4.1.bn2.bias"]
    state["conv1.weight"] = torch.zeros(64, 3, 3, 3)
    torch.save(state, path)
    with pytest.raises(
        CouceError, match=r"missing layer4.1.bn2.bias; .*conv1.weight \(64, 3, 3, 3\)"
    ):
        build_backbone("resnet18", pretrained=path)


class Hostile:
    def __reduce__(self) -> tuple[object, ...]:
        return print, ("executed",)


def test_files_that_are_no_weights_are_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(CouceError, match="no file of weights"):
        build_backbone("tiny", pretrained=tmp_path / "absent.pth")
    with pytest.raises(CouceError, match=r"\.pth, \.pt or \.safetensors"):
        build_backbone("tiny", pretrained=tmp_path / "weights.bin")
    for suffix in (".pth", ".safetensors"):
        broken = tmp_path / f"broken{suffix}"
        broken.write_bytes(b"no weights at all")
        with pytest.raises(CouceError, match="cannot be read"):
            build_backbone("tiny", pretrained=broken)
    torch.save({"a": Hostile()}, tmp_path / "hostile.pth")
    with pytest.raises(CouceError, match="cannot be read"):
        build_backbone("tiny", pretrained=tmp_path / "hostile.pth")
    assert "executed" not in capsys.readouterr().out
    for content in ([1, 2], {1: torch.zeros(1)}, {"a": {"b": torch.zeros(1)}}):
        torch.save(content, tmp_path / "odd.pth")
        with pytest.raises(CouceError, match="plain mapping"):
            build_backbone("tiny", pretrained=tmp_path / "odd.pth")
    with pytest.raises(CouceError, match="'' is not a file of weights"):
        build_backbone("tiny", pretrained="")


def test_a_file_with_flipped_bytes_is_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "weights.pth"
    torch.save({"stem.0.weight": torch.zeros(4)}, path)
    data, rng = path.read_bytes(), random.Random(0)
    for _ in range(200):
        damaged = bytearray(data)
        for _ in range(3):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        path.write_bytes(damaged)
        # If the file can still be read by chance, its tensors do not fit.
        with pytest.raises(CouceError):
            build_backbone("tiny", pretrained=path)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """The address of a local web server, and the folder that it serves."""
    folder = tmp_path / "served"
    folder.mkdir()
    handler = partial(SimpleHTTPRequestHandler, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as httpd:
        threading.Thread(target=httpd.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{httpd.server_port}", folder
        httpd.shutdown()


def resnet18_from(address: str, sha256: str) -> BackboneSpec:
    spec = BACKBONES["resnet18"]
    return BackboneSpec(
        spec.build, spec.points, spec.default_split, spec.preprocess, (address, sha256), "fc."
    )


def test_public_weights_are_downloaded_once_and_checked(
    server: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address, folder = server
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "cache"))
    torch.save(public_state("resnet18"), folder / "r18.pth")
    sha256 = hashlib.sha256((folder / "r18.pth").read_bytes()).hexdigest()
    url = f"{address}/r18.pth"
    monkeypatch.setitem(BACKBONES, "resnet18", resnet18_from(url, sha256))

    first = build_backbone("resnet18", pretrained=True)
    (folder / "r18.pth").unlink()
    second = build_backbone("resnet18", pretrained=True)  # from the cache
    assert torch.equal(next(first.parameters()), next(second.parameters()))

    (cached,) = (tmp_path / "cache").rglob("r18.pth")
    cached.write_bytes(cached.read_bytes()[:-1] + b"x")
    with pytest.raises(CouceError, match="delete it, and it is downloaded again"):
        build_backbone("resnet18", pretrained=True)
    cached.unlink()
    with pytest.raises(CouceError, match=r"could not be downloaded .*404.*give the path"):
        build_backbone("resnet18", pretrained=True)


def test_a_download_with_the_wrong_hash_is_not_kept(
    server: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address, folder = server
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "cache"))
    (folder / "r18.pth").write_bytes(b"something else")
    monkeypatch.setitem(BACKBONES, "resnet18", resnet18_from(f"{address}/r18.pth", "0" * 64))
    with pytest.raises(CouceError, match="could not be downloaded"):
        build_backbone("resnet18", pretrained=True)
    assert not [p for p in (tmp_path / "cache").rglob("*") if p.is_file()]


def test_public_weights_are_torchvision_s() -> None:
    from torchvision.models import MobileNet_V2_Weights, ResNet18_Weights, ResNet50_Weights

    for name, weights in (
        ("resnet50", ResNet50_Weights.IMAGENET1K_V1),
        ("resnet18", ResNet18_Weights.IMAGENET1K_V1),
        ("mobilenet_v2", MobileNet_V2_Weights.IMAGENET1K_V1),
    ):
        assert BACKBONES[name].weights == (weights.url, weights.url[-12:-4])


def test_public_weights_are_named_with_their_hash() -> None:
    hashes = {name: spec.weights and spec.weights[1] for name, spec in BACKBONES.items()}
    assert hashes == {
        "resnet50": "0676ba61",
        "resnet18": "f37072fd",
        "mobilenet_v2": "b0353104",
        "bn-inception": "52deb473314542a5c2f87e9e6f26f4ca42fe863d15f986414dbae8c2dfdd2353",
        "tiny": None,
    }


def test_unknown_names_list_the_known_ones() -> None:
    with pytest.raises(CouceError, match=r"did you mean 'resnet50'.*known: resnet50, resnet18"):
        build_backbone("resnet-50")
    with pytest.raises(
        CouceError, match=r"unknown split of resnet50 'layer5'.*known: layer2, layer3"
    ):
        build_backbone("resnet50", "layer5")
    with pytest.raises(CouceError, match="tiny has no public weights"):
        build_backbone("tiny", pretrained=True)
