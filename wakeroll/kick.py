"""Kicks, from the operator's side: the time for which a client is kept out, and the answer of the coordinator."""

from dataclasses import dataclass

from wakeroll.errors import InvalidUsage
from wakeroll.time_text import duration_ms_of
from wakeroll_model.config import MAX_KEEP_OUT_MS


@dataclass(frozen=True)
class KickOutcome:
    """The answer to a kick: what happens to the client."""

    client_id: str
    instance_id: str
    """The instance that must leave."""
    is_gone: bool
    """Whether it is no member any more: it owned no queue, or the group does not wait for releases. Else it is a member
    until it has handed its queues over, or its session ends."""
    detail: str
    """Which of the two will happen, and when at the latest, in words."""


def keep_out_ms_of(text: str) -> int:
    """Read a duration like ``10m``, ``90s``, ``2h`` or ``1d``, as ms; 0 needs no unit.

    Raises:
        InvalidUsage: it is no duration, or longer than a client may be kept out.
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
