"""Small breakages of the rules: each must be found by the simulation, or the simulation proves nothing.

A mutant replaces some text of a module's source; the functions that then differ get the new code, in place, so that
whoever has imported them runs it too.
"""

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from types import CodeType, FunctionType, ModuleType
from typing import Any


@dataclass(frozen=True)
class Mutant:
    """One breakage."""

    name: str
    rule: str
    """The sentence that it breaks."""
    module: str
    """Below `model`, or in `wakeroll` with its full name."""
    old: str
    """What stands there once ..."""
    new: str
    """... and what stands there instead."""
    world: Mapping[str, Any]
    """The arguments of `draw` beside the seed, or what is drawn in other simulations: faults that show it soon."""

    @property
    def full_module(self) -> str:
        """The module's full name."""
        return self.module if self.module.startswith("wakeroll.") else f"wakeroll_model.{self.module}"


@contextmanager
def alive(mutant: Mutant) -> Iterator[None]:
    """Break the rule for a while.

    Raises:
        AssertionError: the text does not stand in the module, or more than once, or nothing changes by it.
    """
    module = import_module(mutant.full_module)
    changed = [(function, function.__code__, code) for function, code in _changes(module, mutant)]
    assert changed, f"mutant {mutant.name!r} changes no function"
    try:
        for function, _, code in changed:
            function.__code__ = code
        yield
    finally:
        for function, code, _ in changed:
            function.__code__ = code


def _changes(module: ModuleType, mutant: Mutant) -> Iterator[tuple[FunctionType, CodeType]]:
    """Yield the functions that do something else in the mutant, and what."""
    source = inspect.getsource(module)
    found = source.count(mutant.old)
    where = f"{mutant.full_module.replace('.', '/')}.py"
    assert found == 1, f"mutant {mutant.name!r}: {mutant.old!r} stands {found} times in {where}; once is right"
    mutated = dict(vars(module))
    exec(compile(source.replace(mutant.old, mutant.new), module.__file__ or "", "exec"), mutated)
    for before, after in _functions(vars(module), mutated):
        if _differs(before.__code__, after.__code__):
            yield before, after.__code__


def _functions(before: dict[str, Any], after: dict[str, Any]) -> Iterator[tuple[FunctionType, FunctionType]]:
    """Yield the functions and methods of a module, with those that have the same names in the other one."""
    for name, value in list(before.items()):
        if getattr(value, "__module__", None) != before["__name__"] or name not in after:
            continue
        if isinstance(value, FunctionType):
            yield value, after[name]
        elif isinstance(value, type):
            for part, method in vars(value).items():
                mine, other = _code_of(method), _code_of(vars(after[name]).get(part))
                if mine is not None and other is not None:
                    yield mine, other


def _code_of(member: object) -> FunctionType | None:
    """Return a method, or what stands behind a property; None of everything else."""
    if isinstance(member, property):
        member = member.fget
    return member if isinstance(member, FunctionType) else None


def _differs(before: CodeType, after: CodeType) -> bool:
    """Whether two code objects do different things; where they stand in the file does not matter."""
    return (before.co_code, before.co_names, _constants(before)) != (after.co_code, after.co_names, _constants(after))


def _constants(code: CodeType) -> list[object]:
    """Return what stands in a code object; of functions and comprehensions inside it, what stands in those."""
    return [
        (one.co_code, one.co_names, _constants(one)) if isinstance(one, CodeType) else repr(one)
        for one in code.co_consts
    ]
