"""Modules that can be called, so that a command has one short name in Python.

``couce.evaluate`` is the module that evaluates, and ``couce.evaluate(...)`` is the call that users
expect beside the command ``couce evaluate``. A package attribute can only be one of the two, so the
module itself is made callable.
"""

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any


def make_callable(module: str, function: Callable[..., Any]) -> None:
    """Lets the imported module of that name be called as ``function``."""

    class CallableModule(ModuleType):
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

    sys.modules[module].__class__ = CallableModule
