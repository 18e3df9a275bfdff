"""Waiting for a condition with a deadline: tests wait in no other way."""

import time
from collections.abc import Callable
from typing import TypeVar

PATIENCE_S = 120.0
"""Default deadline: generous, because a busy machine delays everything."""
PATIENCE_WITH_SPARK_S = 600.0
"""Deadline for what a Spark job has to do first."""
LONGEST_PAUSE_S = 0.1
"""The awaited program needs this processor core too."""

Value = TypeVar("Value")


def wait_until(
    done: Callable[[], Value],
    what: str,
    *,
    patience_s: float = PATIENCE_S,
    between: Callable[[], object] | None = None,
    state: Callable[[], object] = str,
) -> Value:
    """Evaluate a condition repeatedly until it is true; return its value.

    Args:
        done: the condition.
        what: the condition in words, for the message of a failure.
        patience_s: the deadline, in seconds from now.
        between: called after each evaluation that is not true, instead of a pause: it polls or reads.
        state: returns what there is instead, for the message of a failure.

    Raises:
        AssertionError: the condition is not true before the deadline.
    """
    deadline, pause_s = time.monotonic() + patience_s, 0.01
    while not (value := done()):
        assert time.monotonic() < deadline, f"not within {patience_s:g} s: {what}; {state()}"
        if between is not None:
            between()
        else:
            time.sleep(pause_s)
            pause_s = min(1.5 * pause_s, LONGEST_PAUSE_S)
    return value
