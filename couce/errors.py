"""Errors for people. Their message is one sentence: what is wrong and what to do."""

from collections.abc import Iterable
from difflib import get_close_matches


class CouceError(ValueError):
    """An error that the user can correct.

    The command line prints it without a traceback and exits with 2.
    """


class StorageError(CouceError):
    """Stored data cannot be read or written. The request itself is correct."""


def unknown_name(kind: str, name: object, known: Iterable[str]) -> CouceError:
    """The error for an unknown name. It suggests the nearest known name and lists all of them.

    >>> print(unknown_name("loss", "proxy-ann", ["proxy-an", "soft-triple"]))
    unknown loss 'proxy-ann' (did you mean 'proxy-an'?); known: proxy-an, soft-triple
    """
    names = list(known)
    near = get_close_matches(str(name), names, n=1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    return CouceError(f"unknown {kind} {name!r}{hint}; known: {', '.join(names)}")
