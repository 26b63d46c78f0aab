"""The search service: FastAPI over an ONNX model and an index.

It imports from couce and couce.index, and never torch.
"""

from couce.server.app import create_app
from couce.server.settings import ServerSettings

__all__ = ["ServerSettings", "create_app"]
