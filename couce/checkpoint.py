"""Writing and reading checkpoints.

A checkpoint is written completely or not at all. Reading one executes nothing from the file.
"""

from pathlib import Path
from typing import Any

import torch

from couce.backbones import BACKBONES, build_backbone
from couce.errors import CouceError
from couce.files import replace_file
from couce.network import EmbeddingNetwork
from couce.plugins import check_plugins
from couce.preprocess import Preprocess

FORMAT = 2


def save(path: Path, content: dict[str, Any]) -> None:
    """Writes a checkpoint. After a crash or on a full disk, the previous file is unchanged."""
    try:
        replace_file(path, lambda part: torch.save({"format": FORMAT, **content}, part))
    except (OSError, RuntimeError) as error:  # torch reports a full disk as a RuntimeError
        kept = "; the previous checkpoint there is unchanged" if path.exists() else ""
        raise CouceError(f"the checkpoint {path} could not be written ({error}){kept}") from error


def load(path: Path) -> dict[str, Any]:
    """The content of a checkpoint, on the CPU."""
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise CouceError(f"there is no checkpoint at {path}") from None
    # The unpickler can raise any exception on a file that is not a checkpoint.
    except Exception as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise CouceError(f"{path} cannot be read as a checkpoint: {reason}") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise CouceError(f"{path} is not a checkpoint of this version of CouCE")
    return content


def describe_network(network: EmbeddingNetwork, preprocess: Preprocess) -> dict[str, Any]:
    """The part of a checkpoint that says how to build its network again, in plain values."""
    return {
        "backbone": network.backbone.name,
        "split": network.backbone.split,
        "dim": network.dim,
        "pooling": network.pooling,
        "preprocess": preprocess.to_dict(),
    }


def load_network(path: Path) -> tuple[EmbeddingNetwork, Preprocess, dict[str, Any]]:
    """The network of a checkpoint, its preprocessing, and the whole content.

    The network needs neither the state of the training nor that of the method. The dictionary and
    the proxies stay in the content.
    """
    content = load(path)
    try:
        model = content["model"]
        if model["backbone"] not in BACKBONES:
            check_plugins(content.get("plugins", {}), str(path))
        backbone = build_backbone(model["backbone"], model["split"])
        network = EmbeddingNetwork(backbone, model["dim"], model["pooling"])
        network.load_state_dict(content["network"])
        return network, Preprocess.from_dict(model["preprocess"]), content
    except (KeyError, TypeError, RuntimeError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise CouceError(f"{path} does not contain a complete network: {reason}") from error
