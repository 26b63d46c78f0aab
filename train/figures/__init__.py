"""The tables and figures of the paper, a module for each command of `couce analyze`."""
