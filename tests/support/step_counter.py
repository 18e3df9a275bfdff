"""Counts the work of Python code: steps, not seconds, so that a busy machine measures the same."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


class Name(str):
    """A text that counts how often it is compared: a scan of a list, in C, has no other steps to count."""

    __slots__ = ()
    compared = 0

    def __eq__(self, other: object) -> bool:
        Name.compared += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


def steps_of(work: Callable[[], object]) -> int:
    """Run something; return how many lines and rounds of loops Python executed, and how often it compared a `Name`."""
    executed = 0

    def trace(frame: FrameType, event: str, _argument: Any) -> Any:
        nonlocal executed
        if frame.f_code.co_filename == __file__:
            return None
        executed += event == "line"
        return trace

    Name.compared, before = 0, sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return executed + Name.compared
