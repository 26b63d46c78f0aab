"""Checkpoints: written whole or not at all, read without executing anything."""

import os
import pickle
from pathlib import Path
from typing import Any

import torch

from couce.errors import CouceError

FORMAT = 1


def save(path: Path, content: dict[str, Any]) -> None:
    """Writes beside ``path``, flushes to the disk, then renames: a crash leaves the old file."""
    part = path.with_name(f"{path.name}.part")
    try:
        with part.open("wb") as file:
            torch.save({"format": FORMAT, **content}, file)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except (OSError, RuntimeError) as error:  # torch reports a full disk as a RuntimeError
        part.unlink(missing_ok=True)
        kept = f"; the one of before is unharmed at {path}" if path.exists() else ""
        raise CouceError(f"the checkpoint {path} could not be written ({error}){kept}") from error


def load(path: Path) -> dict[str, Any]:
    """The content of a checkpoint, on the CPU."""
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise CouceError(f"there is no checkpoint at {path}") from None
    except (OSError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise CouceError(f"{path} cannot be read as a checkpoint: {reason}") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise CouceError(f"{path} is not a checkpoint of this version of CouCE")
    return content
