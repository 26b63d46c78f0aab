"""Training: settings, loop, checkpoints, and the studies and figures of what was trained."""

from couce.train.run import Run, train

__all__ = ["Run", "train"]
