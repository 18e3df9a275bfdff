"""Explorations run without the garbage collector."""

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def without_garbage() -> Iterator[None]:
    """Look for no garbage: there are no cycles, and very many tuples to look through."""
    gc.disable()
    yield
    gc.enable()
