"""The settings of a training run, and the recipes that change their defaults."""

import json
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from couce.errors import CouceError, unknown_name
from couce.method.settings import MethodSettings


class TrainSettings(MethodSettings):
    """The paper's training. ``odba``, ``msrci`` and ``covariance`` are the method's own groups."""

    backbone: str = "resnet50"
    split: str | None = None  # where MSRCI intervenes; None: the backbone's default
    weights: str = "pretrained"  # pretrained, none (a random start), or a file
    dim: int = Field(512, ge=1)
    pooling: Literal["avg", "avg+max"] = "avg"
    loss: str = "proxy-an"
    loss_options: dict[str, float] = Field(default_factory=dict)
    resize: int | None = None  # pixels; None: what the backbone wants
    crop: int | None = None

    epochs: int = Field(80, ge=1)
    batch_classes: int = Field(40, ge=2)
    batch_images: int = Field(3, ge=1)  # of each class
    lr: float = Field(1e-4, gt=0)  # backbone and head
    weight_decay: float = Field(1e-4, ge=0)
    proxy_lr: float = Field(1e-2, gt=0)
    lr_step: int = Field(10, ge=1)  # epochs between two steps of the rate
    lr_gamma: float = Field(0.5, gt=0, le=1)
    warmup: int = Field(5, ge=0)  # epochs in which only head and proxies learn
    clip: float = Field(10.0, gt=0)  # of gradient values
    # The share of the run that a running mean of the weights spans, which is then what is evaluated, saved
    # and exported; 0: none. Its momentum is 1 − 1/steps of that share.
    average: float = Field(0.0, ge=0, lt=1)
    freeze: Literal["none", "stage1"] = "none"  # stage1: no gradients are computed there
    freeze_statistics: bool = True  # of BatchNorm

    validate_classes: float = Field(0.0, ge=0, lt=1)  # share of the training classes held out
    # They are those in a row from this one, counted from 1; None: drawn at random, by the seed.
    validate_from: int | None = Field(None, ge=1)
    # false: the test half is not looked at, and the result is of the held-out classes
    test: bool = True
    evaluate_every: int = Field(1, ge=1)  # epochs
    seed: int = 0
    device: str = "auto"
    cache: Literal["none", "ram", "disk"] = "none"  # of decoded, resized images
    workers: int = Field(4, ge=0)  # processes that decode; 0: in the loop itself
    compile: bool = False

    @model_validator(mode="after")
    def _held_out(self) -> Self:
        for name, wanted in (
            ("validate_from", self.validate_from),
            ("test = false", not self.test),
        ):
            if wanted and not self.validate_classes:
                raise ValueError(
                    f"{name} needs held-out classes: set validate_classes, such as 0.3"
                )
        return self

    def to_toml(self) -> str:
        """These settings as a file for ``--config``; what is None is left out, as its default is."""
        values = {k: v for k, v in self.model_dump(mode="json").items() if v is not None}
        plain = [f"{k} = {json.dumps(v)}" for k, v in values.items() if not isinstance(v, dict)]
        for group, members in values.items():
            if isinstance(members, dict):
                plain += ["", f"[{group}]", *(f"{k} = {json.dumps(v)}" for k, v in members.items())]
        return "\n".join(plain) + "\n"


_OFF = {"weight": 0.0}

# Later ones win: the data set's, the backbone's, the preset's, then what the user says.
_DATASETS: dict[str, dict[str, Any]] = {
    "sop": {"batch_classes": 60, "batch_images": 2, "lr_step": 20, "freeze_statistics": False},
    "demo": {
        "backbone": "tiny",
        "weights": "none",
        "dim": 128,
        "epochs": 25,
        "batch_classes": 30,
        "batch_images": 4,
        "lr": 1e-3,
        "warmup": 0,
        "freeze_statistics": False,
        "evaluate_every": 5,
        "cache": "ram",
        "workers": 0,
    },
}
_BACKBONES: dict[str, dict[str, Any]] = {"bn-inception": {"warmup": 1}}
PRESETS: dict[str, dict[str, Any]] = {
    "paper": {},
    "cpu": {
        "backbone": "mobilenet_v2",
        "resize": 146,
        "crop": 128,
        "epochs": 10,
        "warmup": 1,
        "lr_step": 4,
        "freeze": "stage1",
        "cache": "ram",
        "workers": 0,
    },
}
METHODS: dict[str, dict[str, Any]] = {
    "base": {"odba": _OFF, "msrci": _OFF, "covariance": _OFF},
    "odba": {"msrci": _OFF, "covariance": _OFF},
    "msrci": {"odba": _OFF, "covariance": _OFF},
    "odba+msrci": {"covariance": _OFF},
    "couce": {},
    # Chosen on held-out training classes of CUB; why is in docs/couce-plus.md.
    "couce-plus": {
        "msrci": {
            "schedule": "uniform",
            "strongest": 0.9,
            "scope": "channel",
            "supervise": "mixed",
        },
        "covariance": _OFF,
    },
}
# Free statistics of BatchNorm are to be those of clean maps, as the exported model will see: both views, not
# the intervened alone. And a network that starts from noise needs to learn from clean maps too.
_FREE_STATISTICS: dict[str, dict[str, Any]] = {"couce-plus": {"msrci": {"supervise": "both"}}}


def resolve(
    dataset: str,
    preset: str = "paper",
    method: str = "couce",
    config: Path | None = None,
    assignments: Iterable[str] = (),
    options: Mapping[str, Any] | None = None,
) -> TrainSettings:
    """The settings of a run: recipes, then a TOML file, then ``key=value``, then named options."""
    if preset not in PRESETS:
        raise unknown_name("preset", preset, PRESETS)
    if method not in METHODS:
        raise unknown_name("method", method, METHODS)
    given: dict[str, Any] = {}
    if config is not None:
        _merge(given, _read(config))
    for assignment in assignments:
        _merge(given, _assignment(assignment))
    _merge(given, {key: value for key, value in (options or {}).items() if value is not None})
    values: dict[str, Any] = {}
    recipe = _DATASETS.get(dataset, {}) | PRESETS[preset]
    backbone = given.get("backbone", recipe.get("backbone", ""))
    for layer in (_DATASETS.get(dataset, {}), _BACKBONES.get(backbone, {}), PRESETS[preset]):
        _merge(values, layer)
    _merge(values, METHODS[method])
    if not (values | given).get("freeze_statistics", True):
        _merge(values, _FREE_STATISTICS.get(method, {}))
    _merge(values, given)
    return TrainSettings.parse(values)


def meaning(dataset: str, method: str) -> str:
    """What the names in a command stand for, as text: the defaults and the recipes of this version."""
    of_method = [METHODS.get(method), _FREE_STATISTICS.get(method)]
    recipes = [_DATASETS.get(dataset), _BACKBONES, PRESETS, *of_method]
    return json.dumps([TrainSettings().model_dump(mode="json"), *recipes])


def _merge(into: dict[str, Any], more: Mapping[str, Any]) -> None:
    for key, value in more.items():
        if isinstance(value, Mapping) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = dict(value) if isinstance(value, Mapping) else value


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text())
    except OSError as error:
        raise CouceError(f"the settings in {path} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise CouceError(f"{path} is not TOML: {error}") from None


def _assignment(text: str) -> dict[str, Any]:
    """``odba.capacity=4096`` as nested mappings; a value that is no TOML is taken as a word."""
    key, sign, value = text.partition("=")
    if not sign or not key:
        raise CouceError(f"--set takes key=value, such as odba.capacity=4096, not {text!r}")
    try:
        parsed: Any = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        parsed = value
    for part in reversed(key.split(".")):
        parsed = {part: parsed}
    return parsed
