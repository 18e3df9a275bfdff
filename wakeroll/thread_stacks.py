"""Where a thread is, for the log."""

import sys
import traceback

_FRAMES = 12
"""Innermost calls that are shown."""


def stack_of(thread_id: int | None) -> str:
    """Return the innermost calls of a running thread, one or two lines each, the newest last; empty if it has ended."""
    frame = None if thread_id is None else sys._current_frames().get(thread_id)
    if frame is None:
        return ""
    return "".join(traceback.format_stack(frame)[-_FRAMES:]).rstrip()
