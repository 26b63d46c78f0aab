"""What a server is told when it starts."""

import ipaddress
from pathlib import Path
from typing import Literal

from pydantic import Field

from couce.config import Settings
from couce.errors import CouceError
from couce.index.opening import is_remote

MEGABYTE = 2**20


class ServerSettings(Settings):
    """All of it has a default: ``model.onnx`` and ``index/`` of the folder it is started in."""

    model: Path = Path("model.onnx")
    index: str = "index"  # a folder, or milvus+http://host:19530/name
    host: str = "127.0.0.1"
    port: int = Field(8000, ge=0, le=65535)
    # Uploaded images, evaluations and keys: what processes share. None: INDEX/server.
    state: Path | None = None
    preprocess: tuple[str, ...] = ()  # for a model that does not say it itself: crop=224
    provider: str = "auto"
    threads: int | None = Field(None, ge=1)  # of the model; None: this process's share of the cores
    workers: int = Field(1, ge=1)  # processes that serve
    read_only: bool = False
    new_index: bool = False  # make an empty one where there is none

    batch: int = Field(
        16, ge=1
    )  # images the model sees at once, at most; rounded down to a power of 2
    batch_wait: float = Field(0.005, ge=0)  # seconds that a batch waits for images being decoded
    queue: int = Field(48, ge=1)  # images taken and not yet embedded; beyond it 429

    body_bytes: int = Field(20 * MEGABYTE, ge=1024)  # of a request
    upload_bytes: int = Field(512 * MEGABYTE, ge=1024)  # of a set to evaluate
    held_bytes: int = Field(512 * MEGABYTE, ge=1024)  # of all requests that are being read
    pixels: int = Field(50_000_000, ge=1)  # of an image
    images: int = Field(64, ge=1)  # of an /embed request
    decode_seconds: float = Field(10.0, gt=0)  # for an image
    read_seconds: float = Field(30.0, gt=0)  # for a request's body to arrive

    # Keys. auto: wanted as soon as one was made, and as soon as others than this machine can connect.
    authentication: Literal["auto", "required", "off"] = "auto"
    origins: tuple[str, ...] = ()  # of other pages that may call: https://example.org

    @property
    def state_folder(self) -> Path:
        if self.state is not None:
            return self.state
        if is_remote(self.index):
            raise CouceError(
                "an index in Milvus has no folder for uploaded images and evaluations; say one with"
                " --state, which all servers of that index share"
            )
        return Path(self.index) / "server"

    @property
    def local(self) -> bool:
        """Whether only this machine can connect."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False
