"""The import of Great Expectations without the packages that Data Docs of a check in DuckDB do not need.

It imports SciPy's statistics and Altair for expectations that wakeroll does not use, and the clients of Spark and of
cloud stores if they happen to be installed. Together, these imports take longer than the check.
"""

import gc
import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from types import ModuleType
from typing import Any

_LATER = ("altair", "scipy.stats")
"""Modules that are imported when they are used first."""
_OPTIONAL = ("boto3", "botocore", "pyspark")
"""Packages that are optional for Great Expectations."""


class _Later(ModuleType):
    """A module that is imported when an attribute of it is read."""

    def __getattr__(self, name: str) -> Any:
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        module = importlib.import_module(self.__name__)
        self.__dict__.update(vars(module))
        return getattr(module, name)


@contextmanager
def lean_imports() -> Iterator[None]:
    """Make the import of Great Expectations in a block quick.

    Packages that this process has already imported are not affected. A process that uses Spark too must import
    `pyspark` before.
    """
    for name in _LATER:
        package, _, child = name.partition(".")
        if name not in sys.modules and find_spec(package) is not None:
            sys.modules[name] = _Later(name)
            if child:
                setattr(importlib.import_module(package), child, sys.modules[name])
    hidden = [name for name in _OPTIONAL if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]  # `None` makes an import fail
    is_collecting = gc.isenabled()
    gc.disable()  # it would look at the new classes again and again
    try:
        yield
    finally:
        if is_collecting:
            gc.enable()
        for name in hidden:
            del sys.modules[name]
