"""The settings of a training run, and the recipes that change their defaults."""

import json
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, Self

import tomli_w
from pydantic import Field, model_validator

from couce.errors import CouceError, unknown_name
from couce.method.ablations import ABLATIONS
from couce.method.settings import MethodSettings


class TrainSettings(MethodSettings):
    """The settings of a run. The defaults are those of the paper where the paper gives them.

    The groups ``odba``, ``msrci`` and ``covariance`` come from :class:`MethodSettings`.
    """

    backbone: str = "resnet50"
    split: str | None = None  # where MSRCI intervenes; None: the backbone's default
    weights: str = "pretrained"  # pretrained, none (a random start), or a file
    dim: int = Field(512, ge=1)
    pooling: Literal["avg", "avg+max"] = "avg"
    loss: str = "proxy-an"
    loss_options: dict[str, float] = Field(default_factory=dict)
    resize: int | None = None  # pixels; None: what the backbone needs
    crop: int | None = None

    epochs: int = Field(80, ge=1)
    batch_classes: int = Field(40, ge=2)
    batch_images: int = Field(3, ge=1)  # of each class
    lr: float = Field(1e-4, gt=0)  # backbone and head
    weight_decay: float = Field(1e-4, ge=0)
    proxy_lr: float = Field(1e-2, gt=0)
    lr_step: int = Field(10, ge=1)  # both learning rates are lowered once in so many epochs
    lr_gamma: float = Field(0.5, gt=0, le=1)
    warmup: int = Field(5, ge=0)  # epochs in which only head and proxies learn
    clip: float = Field(10.0, gt=0)  # the largest absolute value of a gradient
    # The share of the run over which a running mean of the weights is taken; 0: no mean. This mean
    # is then evaluated, saved and exported. Its momentum is 1 − 1/(steps of that share).
    average: float = Field(0.0, ge=0, lt=1)
    freeze: Literal["none", "stage1"] = "none"  # stage1: no gradients are computed there
    freeze_statistics: bool = True  # BatchNorm keeps the statistics of the starting weights

    validate_classes: float = Field(0.0, ge=0, lt=1)  # share of the training classes held out
    # The number of the first held-out class, counted from 1. The others follow it in the order of
    # their names. None: the classes are drawn at random by the seed.
    validate_from: int | None = Field(None, ge=1)
    # False: the test half is not evaluated, and the result is that of the held-out classes.
    test: bool = True
    evaluate_every: int = Field(1, ge=1)  # the metrics are measured once in so many epochs
    seed: int = 0
    device: str = "auto"
    cache: Literal["none", "ram", "disk"] = "none"  # of decoded, resized images
    workers: int = Field(4, ge=0)  # threads that decode images; 0 and 1: one thread
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
        """These settings as a TOML file for ``--config``. TOML has no null: None is left out."""
        return tomli_w.dumps(self.model_dump(mode="json", exclude_none=True))


# Recipes. Later ones win: data set, backbone, preset, method, and then the user's settings.
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
    **ABLATIONS,
    # BGAugment (Kobs and Hotho, 2022), the usual way to make a network ignore backgrounds.
    "bgaugment": {**ABLATIONS["base"], "backgrounds": {"share": 0.5}},
    # Chosen on held-out training classes of CUB; docs/results/couce-plus.md says why.
    "couce-plus": {
        "msrci": {
            "schedule": "uniform",
            "strongest": 0.9,
            "scope": "channel",
            "supervise": "mixed",
        },
        "covariance": ABLATIONS["base"]["covariance"],
    },
}
# If the statistics of BatchNorm are not frozen, they must be those of clean maps, because the
# exported model sees clean maps. So couce-plus then trains on both views instead of the intervened
# view alone. A network with random starting weights needs to learn from clean maps as well.
_FREE_STATISTICS: dict[str, dict[str, Any]] = {"couce-plus": {"msrci": {"supervise": "both"}}}


def resolve(
    dataset: str,
    preset: str = "paper",
    method: str = "couce",
    config: Path | None = None,
    assignments: Mapping[str, Any] | None = None,
    options: Mapping[str, Any] | None = None,
) -> TrainSettings:
    """The settings of a run: recipes, then a TOML file, then ``assignments``, then named options.

    What comes later wins. ``assignments`` are values by dotted names, such as
    ``{"odba.capacity": 4096}``. An option that is None counts as not given.
    """
    if preset not in PRESETS:
        raise unknown_name("preset", preset, PRESETS)
    if method not in METHODS:
        raise unknown_name("method", method, METHODS)
    given: dict[str, Any] = {}
    if config is not None:
        _merge(given, _read(config))
    for key, value in (assignments or {}).items():
        _merge(given, _nested(key, value))
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
    """The defaults and recipes that the names in a command stand for in this version, as text."""
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
        raise CouceError(f"{path} is not a valid TOML file: {error}") from None


def parse_assignments(texts: Iterable[str]) -> dict[str, Any]:
    """Values by dotted names, from texts such as ``odba.capacity=4096``.

    A value that is not TOML is taken as a string.

    >>> parse_assignments(["odba.capacity=4096", "msrci.scope=channel"])
    {'odba.capacity': 4096, 'msrci.scope': 'channel'}
    """
    found: dict[str, Any] = {}
    for text in texts:
        key, sign, value = text.partition("=")
        if not sign or not key:
            raise CouceError(f"--set takes key=value, such as odba.capacity=4096, not {text!r}")
        try:
            found[key] = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            found[key] = value
    return found


def _nested(key: str, value: Any) -> dict[str, Any]:
    for part in reversed(key.split(".")):
        value = {part: value}
    return value
