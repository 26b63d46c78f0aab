"""Export: from a checkpoint to a plain ONNX model, with proof of what is in it."""

from couce.export.exporting import Exported, export

__all__ = ["Exported", "export"]
