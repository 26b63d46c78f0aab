"""Tests of the server. This is a package, because the tests import from conftest.py."""
