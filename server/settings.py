"""The settings of a server, each defined once.

A setting has one name: ``max_bytes`` is the option ``--max-bytes``, the variable
``COUCE_MAX_BYTES`` and the key ``max_bytes`` of a TOML file. An option wins over a variable, and a
variable over the file.
The descriptions below are the texts of ``couce serve --help`` and of docs/server.md.
"""

import ipaddress
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator

from couce.config import Settings
from couce.errors import CouceError
from couce.index.opening import is_remote

MEGABYTE = 2**20
VARIABLE = "COUCE_"  # the prefix of the variables of all settings


class ServerSettings(Settings):
    """The settings, which all have a default.

    Without any, the server uses ``model.onnx`` and ``index/`` of the current folder.
    """

    model: Path = Field(Path("model.onnx"), description="The ONNX model, from `couce export`.")
    index: str = Field(
        "index", description="The index: a folder, or milvus+http://host:19530/name."
    )
    host: str = Field("127.0.0.1", description="The address to listen on.")
    port: int = Field(
        8000, ge=0, le=65535, description="The port to listen on; 0 takes any free port."
    )
    workers: int = Field(1, ge=1, description="The number of processes that answer requests.")
    state: Path | None = Field(
        None, description="The folder of uploads, evaluations and keys. [default: INDEX/server]"
    )
    keys: Literal["auto", "required", "off"] = Field(
        "auto",
        description="Whether requests need a key: required, off or auto. With auto they need one as"
        " soon as a key exists, or if other machines can connect.",
    )
    origin: tuple[str, ...] = Field(
        (),
        description="A site whose pages may call the server, such as https://example.org."
        " Repeatable.",
    )
    read_only: bool = Field(False, description="Refuse all changes to the gallery.")
    new_index: bool = Field(False, description="Make an empty index if there is none.")
    preprocess: tuple[str, ...] = Field(
        (),
        description="How to prepare images for a model that is not CouCE's, such as crop=224."
        " Repeatable.",
    )
    provider: str = Field("auto", description="Where the model runs: auto, cuda, tensorrt or cpu.")
    threads: int | None = Field(
        None,
        ge=1,
        description="The number of threads of the model. [default: a process's share of the cores]",
    )

    batch: int = Field(
        16,
        ge=1,
        description="The largest number of images in a batch, rounded down to a power of two.",
    )
    batch_wait: float = Field(
        0.005, ge=0, description="How many seconds a batch waits for images that are being decoded."
    )
    queue: int = Field(
        48,
        ge=1,
        description="The largest number of images that wait to be embedded; further ones are"
        " refused with status 429.",
    )

    max_bytes: int = Field(
        20 * MEGABYTE, ge=1024, description="The largest size of a request in bytes."
    )
    max_upload_bytes: int = Field(
        512 * MEGABYTE,
        ge=1024,
        description="The largest size in bytes of a data set that is sent for evaluation.",
    )
    max_held_bytes: int = Field(
        512 * MEGABYTE,
        ge=1024,
        description="The largest total size in bytes of all requests that are being received.",
    )
    max_pixels: int = Field(
        50_000_000, ge=1, description="The largest number of pixels of an image."
    )
    max_images: int = Field(
        64, ge=1, description="The largest number of images in a request to /embed."
    )
    decode_seconds: float = Field(
        10.0, gt=0, description="How many seconds the decoding of an image may take."
    )
    read_seconds: float = Field(
        30.0,
        gt=0,
        description="How many seconds a request may take to arrive; large requests get more time.",
    )

    @field_validator("origin", "preprocess", mode="before")
    @classmethod
    def _from_variable(cls, value: object) -> object:
        """A variable holds several values separated by spaces."""
        return value.split() if isinstance(value, str) else value

    @property
    def state_folder(self) -> Path:
        if self.state is not None:
            return self.state
        if is_remote(self.index):
            raise CouceError(
                "an index in Milvus has no folder for uploaded images and evaluations; name one"
                " that all its servers share with --state"
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


def variable(name: str) -> str:
    """The environment variable of a setting.

    >>> variable("max_bytes")
    'COUCE_MAX_BYTES'
    """
    return VARIABLE + name.upper()


def read_settings(
    options: Mapping[str, Any],
    config: Path | None = None,
    environment: Mapping[str, str] = os.environ,
) -> ServerSettings:
    """The settings from ``options``, then variables, then the TOML file ``config``."""
    values: dict[str, Any] = {}
    if config is not None:
        try:
            values = tomllib.loads(config.read_text())
        except OSError as error:
            raise CouceError(
                f"the settings in {config} cannot be read ({error.strerror}); check the path and"
                " its permissions"
            ) from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise CouceError(f"{config} is not TOML ({error}); correct the file") from None
    for name in ServerSettings.model_fields:
        if variable(name) in environment:
            values[name] = environment[variable(name)]
    return ServerSettings.parse(values | dict(options))
