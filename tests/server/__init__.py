"""A package, since its tests share what conftest.py defines."""
