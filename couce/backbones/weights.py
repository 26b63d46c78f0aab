"""Pretrained weights: downloaded once, checked by hash, loaded completely or not at all."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from urllib.error import URLError
from urllib.parse import urlparse

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from couce.backbones.base import BackboneSpec
from couce.errors import CouceError


def fetch(address: str, sha256: str) -> Path:
    """The file from ``address`` in torch hub's cache, downloaded if it is not there yet.

    ``sha256`` may be the start of a hash. The cached file is checked every time it is used.
    """
    path = Path(torch.hub.get_dir()) / "checkpoints" / Path(urlparse(address).path).name
    if not path.exists():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # This writes a temporary file and renames it if its hash is right.
            torch.hub.download_url_to_file(address, str(path), hash_prefix=sha256)
        except (URLError, OSError, RuntimeError) as error:
            raise CouceError(
                f"{address} could not be downloaded ({error}); download it on another machine and"
                " give the path of the file"
            ) from error
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if not digest.startswith(sha256):
        raise CouceError(
            f"{path} has the sha256 {digest}, not {sha256}; delete it, and it is downloaded again"
        )
    return path


def load(layers: Mapping[str, nn.Module], path: Path, spec: BackboneSpec) -> None:
    """Copies the tensors of a .pth or .safetensors file into ``layers``. All of them must fit."""
    state = {
        key: tensor
        for key, tensor in spec.convert(_read(path)).items()
        if not (spec.classifier and key.startswith(spec.classifier))
    }
    own = {
        f"{name}.{key}": tensor
        for name, layer in layers.items()
        for key, tensor in layer.state_dict().items()
    }
    # Files older than torch 0.4.1 lack this counter. Only a BatchNorm with momentum None uses it.
    missing = [k for k in own if k not in state and not k.endswith("num_batches_tracked")]
    unexpected = [k for k in state if k not in own]
    misshapen = [
        f"{k} {tuple(state[k].shape)} instead of {tuple(own[k].shape)}"
        for k in own
        if k in state and state[k].shape != own[k].shape
    ]
    faults = [
        f"{kind} {', '.join(keys[:3])}" + (f" and {len(keys) - 3} more" if len(keys) > 3 else "")
        for kind, keys in (
            ("missing", missing),
            ("unexpected", unexpected),
            ("of another shape", misshapen),
        )
        if keys
    ]
    if faults:
        raise CouceError(
            f"the weights in {path} do not fit this backbone ({'; '.join(faults)}); give the"
            " weights of the same architecture"
        )
    for key in own.keys() & state.keys():
        own[key].copy_(state[key])


def _read(path: Path) -> dict[str, Tensor]:
    if path.suffix not in (".pth", ".pt", ".safetensors"):
        raise CouceError(
            f"{path.name!r} is not a file of weights; give a .pth, .pt or .safetensors file"
        )
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        state = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise CouceError(f"there is no file of weights at {path}; check the path") from None
    # The parsers raise errors of many types for a damaged file.
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CouceError(f"{path} cannot be read as a file of weights: {reason}") from error
    if not isinstance(state, dict) or not all(
        isinstance(key, str) and isinstance(value, Tensor) for key, value in state.items()
    ):
        raise CouceError(
            f"{path} does not hold weights: it must be a plain mapping from names to tensors"
        )
    return state
