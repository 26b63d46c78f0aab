"""The audit: how much a model's retrieval depends on light, frame, sharpness and background."""

from couce.audit.command import audit
from couce.callable import make_callable

__all__ = ["audit"]

make_callable(__name__, audit)
