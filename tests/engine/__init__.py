"""A package, so that these tests' own fixtures do not take the name of `tests/conftest.py`."""
