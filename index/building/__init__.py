"""Builds the items of an index from a folder of images."""
