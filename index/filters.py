"""Which items a search may find: one small language for both backends.

A filter maps fields to what they may be: ``{"label": "bird", "metadata.year": [2023, 2024]}``. All
fields must fit, each with any of its values. None stands for an item without a label, or without that
key in its metadata.
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
    """The filter in a form that can be compared and kept: fields with their tuples of values.

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
    """Of the command line: ``label=bird``. The same field again is another value it may have.

    Text that is also a number, true or false in JSON means either.

    >>> parse(["label=bird", "metadata.year=2024"])
    {'label': ['bird'], 'metadata.year': ['2024', 2024]}
    """
    found: dict[str, list[Value]] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise CouceError(f"a filter is written field=value, as in label=bird, not {text!r}")
        values = found.setdefault(name.strip(), [])
        values.append(value)
        if name.strip().startswith("metadata."):
            number = _number(value)
            if number is not None:
                values.append(number)
    return dict(found) or None


def _number(text: str) -> int | float | bool | None:
    """As SQLite and Milvus have it: 64 bits, beyond them a float."""
    try:
        found = json.loads(text)
        if not isinstance(found, bool | int | float) or not math.isfinite(found):
            return None
        return found if -_BEYOND <= found < _BEYOND else float(found)
    except (ValueError, OverflowError, RecursionError):
        return None


def to_sql(found: Clauses) -> tuple[str, list[Any]]:
    """A condition on the catalog's table ``items`` and its parameters. Values never enter the text."""
    conditions: list[str] = []
    parameters: list[Any] = []
    for name, values in found:
        if name in ("id", "label"):
            # As one parameter: SQLite limits how many there may be.
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
    """Milvus's boolean expression; an item without a label has the label ''."""
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
    """A literal of Milvus's grammar, which knows JSON's escapes and no others are needed."""
    return json.dumps(text, ensure_ascii=False)


def _check(name: str, value: object) -> None:
    if name in ("id", "label"):
        fits = isinstance(value, str) or (value is None and name == "label")
    else:
        fits = value is None or isinstance(value, str | int | float | bool)
    if isinstance(value, int) and not -_BEYOND <= value < _BEYOND:
        fits = False
    if not fits:
        raise CouceError(f"a filter's value for {name!r} cannot be {value!r}")
    try:
        name.encode()
        str(value).encode()
    except UnicodeEncodeError:
        raise CouceError(f"a filter's value for {name!r} is not text: {value!r}") from None
