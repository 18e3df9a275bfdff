"""What a change of a group's members did to the messages that its consumers handed out.

All times are ns of the monotonic clock.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Literal, NamedTuple

from msgspec import Struct

from wakeroll_pipeline.local.story_checks import Handled

Kind = Literal["join", "leave", "crash"]
_NS = 1_000_000_000


class Change(NamedTuple):
    """A change of the members of a group."""

    kind: Kind
    client_id: str
    """Who joined, left or was killed."""
    began_ns: int
    """When it began to join or to leave, or was killed."""
    until_ns: int
    """When the group was settled again."""


class Effect(Struct, frozen=True):
    """What a change did."""

    first_s: float
    """After a join: until the new consumer's first message; else until others had a message of each of its queues."""
    kept_gap_s: float
    """Longest time between two messages of a queue that has the same owner before and after; 0: there is none."""
    moved_gap_s: float
    """The same of the queues whose owner changed."""
    repeated: int
    """Messages that were handed out again meanwhile."""


def owners(handed: Iterable[Handled], until_ns: int) -> dict[int, str]:
    """Return the client that handed out the last message of each queue before a moment; messages are in order."""
    return {one.queue_id: one.client_id for one in handed if one.start_ns < until_ns}


def effect_of(change: Change, handed: Sequence[Handled]) -> Effect:
    """Return what a change did.

    Args:
        change: the change.
        handed: all messages of the group so far, in order of time.

    Raises:
        ValueError: a message that the change should have led to was not handed out.
    """
    before, after = owners(handed, change.began_ns), owners(handed, change.until_ns)
    gaps = _longest_gaps(change, handed)
    kept = {queue_id for queue_id, client_id in before.items() if after[queue_id] == client_id}
    return Effect(
        first_s=round((_arrived_ns(change, handed, before) - change.began_ns) / _NS, 3),
        kept_gap_s=max((gaps[queue_id] for queue_id in kept), default=0.0),
        moved_gap_s=max((gaps[queue_id] for queue_id in before.keys() - kept), default=0.0),
        repeated=_repeats(change, handed),
    )


def _arrived_ns(change: Change, handed: Iterable[Handled], before: Mapping[int, str]) -> int:
    later = [one for one in handed if change.began_ns <= one.start_ns < change.until_ns]
    if change.kind == "join":
        firsts = [one.start_ns for one in later if one.client_id == change.client_id][:1]
        wanted = 1
    else:
        its = {queue_id for queue_id, client_id in before.items() if client_id == change.client_id}
        others = [one for one in later if one.queue_id in its and one.client_id != change.client_id]
        firsts = list({one.queue_id: one.start_ns for one in reversed(others)}.values())
        wanted = len(its)
    if not firsts or len(firsts) < wanted:
        raise ValueError(f"after the {change.kind} of {change.client_id}, {wanted - len(firsts)} queues had no message")
    return max(firsts)


def _longest_gaps(change: Change, handed: Iterable[Handled]) -> dict[int, float]:
    """Return queue -> longest time (s) between two messages, from the last one before the change on."""
    times: dict[int, list[int]] = {}
    for one in handed:
        if one.start_ns < change.began_ns:
            times[one.queue_id] = [one.start_ns]
        elif one.start_ns < change.until_ns:
            times.setdefault(one.queue_id, []).append(one.start_ns)
    return {
        queue_id: round(max((late - early for early, late in pairwise(seen)), default=0) / _NS, 3)
        for queue_id, seen in times.items()
    }


def _repeats(change: Change, handed: Iterable[Handled]) -> int:
    seen: set[tuple[int, int]] = set()
    again = 0
    for one in handed:
        at = (one.queue_id, one.offset)
        again += at in seen and change.began_ns <= one.start_ns < change.until_ns
        seen.add(at)
    return again
