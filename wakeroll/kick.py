"""Kicks on the side of the operator: the time for which a client is kept out, and the answer of the coordinator."""

from dataclasses import dataclass

from wakeroll.errors import InvalidUsage
from wakeroll.time_text import duration_ms_of
from wakeroll_model.config import MAX_KEEP_OUT_MS


@dataclass(frozen=True)
class KickOutcome:
    """The answer to a kick: when the client leaves."""

    client_id: str
    instance_id: str
    """The instance that must leave."""
    is_gone: bool
    """Whether the client has left already, because it owned no queue or the group does not wait for releases. Otherwise
    it stays a member until it has handed its queues over, or its session ends."""
    detail: str
    """The reason of the departure, or what the client must hand over and the latest time for it, in words."""


def keep_out_ms_of(text: str) -> int:
    """Read a duration like ``10m``, ``90s``, ``2h`` or ``1d``, as ms; 0 needs no unit.

    Raises:
        InvalidUsage: the text is not a duration, or the duration exceeds the maximum.
    """
    duration_ms = 0 if text.strip() == "0" else duration_ms_of(text)
    if duration_ms is None:
        raise InvalidUsage(
            f"the time to keep the client out is {text[:64]!r}; write a whole number with its unit, like 90s, 10m or 2h"
        )
    if duration_ms > MAX_KEEP_OUT_MS:
        raise InvalidUsage(
            f"the time to keep the client out is {text!r}; it must be at most {MAX_KEEP_OUT_MS // 3_600_000}h"
        )
    return duration_ms
