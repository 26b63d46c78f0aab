"""A package, since its tests share what conftest.py and site.py define."""
