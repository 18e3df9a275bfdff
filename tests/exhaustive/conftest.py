"""Makes the exploration's own modules and the simulation's mutants importable; nothing else does in importlib mode."""

import gc
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent

for folder in (HERE, HERE.parent / "simulation"):
    sys.path.insert(0, str(folder))


@pytest.fixture(autouse=True)
def without_garbage() -> Iterator[None]:
    """Look for no garbage: there are no cycles, and very many tuples to look through."""
    gc.disable()
    yield
    gc.enable()
