"""Small breakages of the rules: each must be found by the simulation, or the simulation proves nothing.

A mutant replaces some text of a module's source; the functions that then differ get the new code, in place, so that
whoever has imported them runs it too.
"""

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from types import FunctionType
from typing import Any


@dataclass(frozen=True)
class Mutant:
    """One breakage."""

    name: str
    rule: str
    """The sentence that it breaks."""
    module: str
    old: str
    new: str
    world: Mapping[str, Any]
    """The arguments of `draw` beside the seed: faults that show it soon."""


@contextmanager
def alive(mutant: Mutant) -> Iterator[None]:
    """Break the rule for a while."""
    module = import_module(f"model.{mutant.module}")
    source = inspect.getsource(module)
    found = source.count(mutant.old)
    assert found == 1, (
        f"mutant {mutant.name!r}: {mutant.old!r} stands {found} times in model/{mutant.module}.py; once is right"
    )
    mutated = dict(vars(module))
    exec(compile(source.replace(mutant.old, mutant.new), module.__file__ or "", "exec"), mutated)
    changed: list[tuple[FunctionType, Any]] = []
    for before, after in [*_functions(vars(module), mutated)]:
        if _differs(before.__code__, after.__code__):
            changed.append((before, before.__code__))
            before.__code__ = after.__code__
    assert changed, f"mutant {mutant.name!r} changes no function"
    try:
        yield
    finally:
        for function, code in changed:
            function.__code__ = code


def _functions(before: dict[str, Any], after: dict[str, Any]) -> Iterator[tuple[FunctionType, FunctionType]]:
    """Yield the functions and methods of a module, with those that have the same names in the other one."""
    name = before["__name__"]
    for key, value in before.items():
        if getattr(value, "__module__", None) != name or key not in after:
            continue
        if isinstance(value, FunctionType):
            yield value, after[key]
        elif isinstance(value, type):
            for part, method in vars(value).items():
                other = vars(after[key]).get(part)
                if isinstance(method, property):
                    method, other = method.fget, other.fget if isinstance(other, property) else None
                if isinstance(method, FunctionType) and isinstance(other, FunctionType):
                    yield method, other


def _differs(before: Any, after: Any) -> bool:
    """Whether two code objects do different things; where they stand in the file does not matter."""
    return (before.co_code, before.co_names, repr(before.co_consts)) != (
        after.co_code,
        after.co_names,
        repr(after.co_consts),
    )
