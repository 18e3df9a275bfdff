"""Stacks of threads and tasks, for the log."""

import asyncio
import sys
import threading
import traceback
from collections import Counter
from collections.abc import Container
from types import CodeType, FrameType
from typing import Any

_FRAMES = 12
"""Number of innermost calls that are shown."""


def stack_of(thread_id: int | None) -> str:
    """Return the innermost calls of a running thread, one or two lines each, the newest last; empty if it has ended."""
    frame = None if thread_id is None else sys._current_frames().get(thread_id)
    if frame is None:
        return ""
    return "".join(traceback.format_stack(frame)[-_FRAMES:]).rstrip()


def name_of(thread_id: int) -> str:
    """Return the name of a thread; its number if it has ended."""
    return next((one.name for one in threading.enumerate() if one.ident == thread_id), str(thread_id))


def calls_of(one: object, codes: Container[CodeType]) -> dict[int, int]:
    """Return thread -> number of its running calls of an object's methods, for methods with these code objects."""
    calls: Counter[int] = Counter()
    for thread_id, innermost in sys._current_frames().items():
        frame: FrameType | None = innermost
        while frame is not None:
            if frame.f_code in codes and frame.f_locals.get("self") is one:
                calls[thread_id] += 1
            frame = frame.f_back
    return calls


def stack_of_task(task: "asyncio.Task[Any]") -> str:
    """Return the innermost calls of a waiting task, as `stack_of`; empty if it runs: then its thread has the stack."""
    coroutine: Any = task.get_coro()
    if getattr(coroutine, "cr_running", True):
        return ""
    frames = []
    while (frame := getattr(coroutine, "cr_frame", None)) is not None:
        frames.append((frame, frame.f_lineno))
        coroutine = getattr(coroutine, "cr_await", None)
    return "".join(traceback.StackSummary.extract(iter(frames[-_FRAMES:])).format()).rstrip()
