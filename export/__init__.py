"""Export: makes a plain ONNX model of a checkpoint, and proves what it contains."""

from couce.export.exporting import Exported, export

__all__ = ["Exported", "export"]
