"""Filters choose the items that a search may find. Both backends understand the same filters.

A filter maps each field to one value or to a list of values, as in
``{"label": "bird", "metadata.year": [2023, 2024]}``. An item matches if every field has one of its
values. The value None matches items without a label, or without that key in their metadata.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from couce.errors import CouceError, unknown_name

Value = str | int | float | bool | None
Filter = Mapping[str, Value | Sequence[Value]]
Clauses = tuple[tuple[str, tuple[Value, ...]], ...]

_BEYOND = 2**63
_FIELDS = ("id", "label", "metadata.KEY")


def clauses(filter: Filter | None) -> Clauses:
    """The filter as a tuple of fields with their values, which can be compared and hashed.

    >>> clauses({"label": "bird"})
    (('label', ('bird',)),)
    """
    found = []
    for name, value in sorted((filter or {}).items()):
        if name not in ("id", "label") and not name.startswith("metadata."):
            raise unknown_name("field in a filter", name, _FIELDS)
        values = tuple(value) if isinstance(value, list | tuple | set | frozenset) else (value,)
        for each in values:
            _check(name, each)
        # True == 1 in Python, but they are different values in JSON.
        kept = {(type(each) is bool, each): each for each in values}
        found.append((name, tuple(kept.values())))
    return tuple(found)


def parse(texts: Iterable[str]) -> Filter | None:
    """Parses filters as they are written on the command line, such as ``label=bird``.

    A field that is given several times may have any of these values. In metadata, a value such as
    ``2024`` or ``true`` matches both the text and the number or boolean.

    >>> parse(["label=bird", "metadata.year=2024"])
    {'label': ['bird'], 'metadata.year': ['2024', 2024]}
    """
    found: dict[str, list[Value]] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise CouceError(f"write a filter as field=value, as in label=bird, not {text!r}")
        values = found.setdefault(name.strip(), [])
        values.append(value)
        if name.strip().startswith("metadata."):
            number = _number(value)
            if number is not None:
                values.append(number)
    return dict(found) or None


def _number(text: str) -> int | float | bool | None:
    """The number or boolean of a text, or None. Integers beyond 64 bits become floats.

    SQLite and Milvus read numbers in the same way.
    """
    try:
        found = json.loads(text)
        if not isinstance(found, bool | int | float) or not math.isfinite(found):
            return None
        return found if -_BEYOND <= found < _BEYOND else float(found)
    except (ValueError, OverflowError, RecursionError):
        return None


def to_sql(found: Clauses) -> tuple[str, list[Any]]:
    """The SQL condition on the catalog's table ``items``, and its parameters.

    The condition itself never contains a value of the filter.
    """
    conditions: list[str] = []
    parameters: list[Any] = []
    for name, values in found:
        if name in ("id", "label"):
            # All values are one parameter, because SQLite limits the number of parameters.
            condition = f"items.{name} IN (SELECT value FROM json_each(?))"  # noqa: S608
            if None in values:
                condition = f"({condition} OR items.{name} IS NULL)"
            conditions.append(condition)
            parameters.append(json.dumps([v for v in values if v is not None]))
            continue
        key = name.removeprefix("metadata.")
        inner = "SELECT 1 FROM json_each(items.metadata) AS pair WHERE pair.key = ?"
        options = []
        for value in values:
            if value is None:
                options.append(f"NOT EXISTS ({inner} AND pair.type != 'null')")
                parameters.append(key)
            elif isinstance(value, bool):
                options.append(f"EXISTS ({inner} AND pair.type = ?)")
                parameters += [key, json.dumps(value)]
            else:
                kinds = "('text')" if isinstance(value, str) else "('integer', 'real')"
                options.append(f"EXISTS ({inner} AND pair.type IN {kinds} AND pair.atom = ?)")
                parameters += [key, value]
        conditions.append(f"({' OR '.join(options) or 'FALSE'})")
    return " AND ".join(conditions) or "TRUE", parameters


def to_milvus(found: Clauses) -> str:
    """The filter as a boolean expression of Milvus, where no label is stored as ''."""
    parts = []
    for name, values in found:
        if name in ("id", "label"):
            texts = [_quoted("" if value is None else str(value)) for value in values]
            parts.append(f"{name} in [{', '.join(texts)}]")
            continue
        field = f"metadata[{_quoted(name.removeprefix('metadata.'))}]"
        options = []
        for value in values:
            if value is None:
                options.append(f"(not exists {field})")
            else:
                literal = _quoted(value) if isinstance(value, str) else json.dumps(value)
                options.append(f"{field} == {literal}")
        parts.append(f"({' or '.join(options)})" if options else "id in []")
    return " and ".join(parts)


def _quoted(text: str) -> str:
    """The text as a string literal for Milvus, whose grammar accepts the escapes of JSON."""
    return json.dumps(text, ensure_ascii=False)


def _check(name: str, value: object) -> None:
    if name in ("id", "label"):
        fits = isinstance(value, str) or (value is None and name == "label")
    else:
        fits = value is None or isinstance(value, str | int | float | bool)
    if isinstance(value, int) and not -_BEYOND <= value < _BEYOND:
        fits = False
    if not fits:
        allowed = "a text" if name in ("id", "label") else "a text, a 64-bit number or a boolean"
        raise CouceError(f"a filter's value for {name!r} cannot be {value!r}; give {allowed}")
    try:
        name.encode()
        str(value).encode()
    except UnicodeEncodeError:
        raise CouceError(
            f"a filter's value for {name!r} is not text in UTF-8: {value!r}; give another one"
        ) from None
