"""A package, since its tests share what conftest.py and crash_writer.py define."""
