"""Training: settings, loop, checkpoints, studies and figures."""

from couce.train.run import Run, train

__all__ = ["Run", "train"]
