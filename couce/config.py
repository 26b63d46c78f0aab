"""Strict settings: an unknown key is an error that names the key and its nearest neighbour."""

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from couce.errors import CouceError


class Settings(BaseModel):
    """A group of named settings. Groups can be nested, as in ``odba.capacity``."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> Self:
        """Settings from nested mappings, such as a TOML file, or one error that lists all faults.

        >>> class Demo(Settings):
        ...     capacity: int = 2048
        >>> Demo.parse({"capacity": 10})
        Demo(capacity=10)
        >>> Demo.parse({"capasity": 10})
        Traceback (most recent call last):
        couce.errors.CouceError: setting 'capasity' is unknown (did you mean 'capacity'?)
        """
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            known = list(cls.names())
            faults = "; ".join(_describe(fault, known) for fault in error.errors())
            raise CouceError(faults) from None

    @classmethod
    def names(cls, prefix: str = "") -> Iterator[str]:
        """The dotted names of all settings and groups of settings."""
        for name, field in cls.model_fields.items():
            group = field.annotation
            if isinstance(group, type) and issubclass(group, Settings):
                yield from group.names(f"{prefix}{name}.")
            yield prefix + name


def _describe(fault: Any, known: list[str]) -> str:
    key = ".".join(str(part) for part in fault["loc"])
    if fault["type"] == "extra_forbidden":
        near = get_close_matches(key, known, n=1)
        return f"setting {key!r} is unknown" + (f" (did you mean {near[0]!r}?)" if near else "")
    message = fault["msg"].removeprefix("Value error, ")
    place = f"setting {key!r}: " if key else ""
    # The input of a rule between several settings is the whole group, which is too long to show.
    got = "" if isinstance(fault["input"], Mapping) else f" (got {fault['input']!r})"
    return f"{place}{message[:1].lower()}{message[1:]}{got}"
