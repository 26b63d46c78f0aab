"""CouCE: image retrieval that looks at the object, not at its background."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from couce.audit import audit as audit
    from couce.evaluate import evaluate as evaluate


def __getattr__(name: str) -> Any:
    """``couce.evaluate(...)`` and ``couce.audit(...)``, imported when they are first used.

    The modules of these names can be called: see :mod:`couce.callable`.
    """
    if name in ("audit", "evaluate"):
        return import_module(f"couce.{name}")
    raise AttributeError(f"module 'couce' has no attribute {name!r}")
