"""Errors meant for people: one sentence that says what is wrong and what to do."""

from collections.abc import Iterable
from difflib import get_close_matches


class CouceError(ValueError):
    """Something the user can mend. The command line prints it without a traceback and exits with 2."""


class StorageError(CouceError):
    """What is kept cannot be read or written: nothing is wrong with what was asked."""


def unknown_name(kind: str, name: object, known: Iterable[str]) -> CouceError:
    """The error for a name that is not in a table; it lists the known ones, the nearest first.

    >>> print(unknown_name("loss", "proxy-ann", ["proxy-an", "soft-triple"]))
    unknown loss 'proxy-ann' (did you mean 'proxy-an'?); known: proxy-an, soft-triple
    """
    names = list(known)
    near = get_close_matches(str(name), names, n=1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    return CouceError(f"unknown {kind} {name!r}{hint}; known: {', '.join(names)}")
