"""Tests of the web page. This is a package, because they import from conftest.py and site.py."""
