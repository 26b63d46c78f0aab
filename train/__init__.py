"""Training - data sets, sampler, loop, checkpoints, evaluation of a split, analysis. Imports couce only."""
