"""A package, so that its tests can import conftest.py and crash_writer.py."""
