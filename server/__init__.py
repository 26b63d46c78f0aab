"""The search service - FastAPI over an ONNX model and an index. Imports couce and index, never torch."""

from couce.server.app import create_app
from couce.server.settings import ServerSettings

__all__ = ["ServerSettings", "create_app"]
