"""Exceptions that come at a chosen line, as those of signal handlers come at any."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import wakeroll
import wakeroll_model

_OURS = tuple(str(Path(package.__file__ or "").parent) for package in (wakeroll, wakeroll_model))
_BROKER = str(Path(wakeroll.__file__ or "").parent / "testing")
"""Its clients stand in for those of Kafka, which are written in C: no signal handler runs in the middle of a call."""
MOST_LINES = 20_000
"""More lines than any program here has."""


class Interrupt(BaseException):
    """The exception of a signal handler."""


class Interrupted:
    """Makes calls in this thread, one of which is interrupted before one line of `wakeroll` or `model`."""

    def __init__(self, at: int) -> None:
        """Interrupt at the line of this number, from 1, counted from the first call on."""
        self.where = ""
        """File and line that were interrupted; empty until then."""
        self._left = at

    def call(self, function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """Make a call; it may raise `Interrupt`."""
        if self.where:
            return function(*arguments, **named)
        before = sys.gettrace()  # that of `make coverage`, which would see nothing of the later tests of this process
        sys.settrace(self._trace)
        try:
            return next(_apart(function, arguments, named))
        finally:
            sys.settrace(before)

    def _trace(self, frame: FrameType, event: str, _: object) -> Any:
        file = frame.f_code.co_filename
        if event == "line" and file.startswith(_OURS) and not _is_in_the_broker(frame):
            self._left -= 1
            if not self._left:
                self.where = f"{Path(file).name}:{frame.f_lineno}"
                sys.settrace(None)
                raise Interrupt(self.where)
        return self._trace


def _apart(function: Callable[..., Any], arguments: tuple[Any, ...], named: dict[str, Any]) -> Iterator[Any]:
    """Yield the result of a call in a generator, which has handled exceptions of its own.

    Where a ``with`` block has suppressed an exception, no signal handler runs, but a trace function does. If it raises
    there, the suppressed exception stays the handled one of the thread, and becomes the context of all later ones.
    """
    yield function(*arguments, **named)


def _is_in_the_broker(frame: FrameType | None) -> bool:
    """Return whether a line belongs to the broker in memory, or to the coordinator that it calls."""
    while frame is not None:
        if frame.f_code.co_filename.startswith(_BROKER):
            return True
        frame = frame.f_back
    return False


def at_every_line(step: int, first: int = 1) -> Iterator[Interrupted]:
    """Yield an interrupt for every `step`-th line, until a program ended before it was interrupted."""
    for at in range(first, MOST_LINES, step):
        interrupted = Interrupted(at)
        yield interrupted
        if not interrupted.where:
            return
    raise AssertionError(f"the program has more than {MOST_LINES} lines")
