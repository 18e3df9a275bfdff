"""What the consumers of `bench.group_changes` handed out to their applications, and what a change did to it.

All times are ns of the monotonic clock.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Literal, NamedTuple

from msgspec import Struct

from bench.growing_logs import GrowingLogs

Kind = Literal["join", "leave", "crash"]
_NS = 1_000_000_000


class Handed(NamedTuple):
    """A message that a consumer has handed out."""

    ns: int
    client_id: str
    queue_id: int
    offset: int


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


class LogTail:
    """The logs of several consumers, read on as they grow."""

    def __init__(self) -> None:
        self.handed: list[Handed] = []
        """All messages so far; those of one consumer are in order."""
        self.last: dict[int, Handed] = {}
        """Queue -> its message that was handed out last."""
        self.began: dict[Path, int] = {}
        """Log -> when its consumer began."""
        self.leaving: dict[Path, int] = {}
        """Log -> when its consumer began to leave."""
        self._logs = GrowingLogs()

    def follow(self, logs: Mapping[Path, str]) -> None:
        """Read what was added to these logs, log -> client."""
        for path, client_id in logs.items():
            for line in self._logs.new_lines(path):
                self._learn(path, client_id, line.split())

    def _learn(self, path: Path, client_id: str, fields: list[str]) -> None:
        ns = int(fields[0])
        match fields[1:]:
            case ["began"]:
                self.began[path] = ns
            case ["leaving"]:
                self.leaving[path] = ns
            case [_, queue_id, offset]:
                one = Handed(ns, client_id, int(queue_id), int(offset))
                self.handed.append(one)
                self.last[one.queue_id] = max(one, self.last.get(one.queue_id, one))
            case _:
                raise ValueError(f"{path} has a line that is neither a message nor a mark: {fields}")


def owners(handed: Iterable[Handed], until_ns: int) -> dict[int, str]:
    """Return the client that handed out the last message of each queue before a moment; messages are in order."""
    return {one.queue_id: one.client_id for one in handed if one.ns < until_ns}


def effect_of(change: Change, handed: Sequence[Handed]) -> Effect:
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


def _arrived_ns(change: Change, handed: Iterable[Handed], before: Mapping[int, str]) -> int:
    later = [one for one in handed if change.began_ns <= one.ns < change.until_ns]
    if change.kind == "join":
        firsts = [one.ns for one in later if one.client_id == change.client_id][:1]
        wanted = 1
    else:
        its = {queue_id for queue_id, client_id in before.items() if client_id == change.client_id}
        others = [one for one in later if one.queue_id in its and one.client_id != change.client_id]
        firsts = list({one.queue_id: one.ns for one in reversed(others)}.values())
        wanted = len(its)
    if not firsts or len(firsts) < wanted:
        raise ValueError(f"after the {change.kind} of {change.client_id}, {wanted - len(firsts)} queues had no message")
    return max(firsts)


def _longest_gaps(change: Change, handed: Iterable[Handed]) -> dict[int, float]:
    """Return queue -> longest time (s) between two messages, from the last one before the change on."""
    times: dict[int, list[int]] = {}
    for one in handed:
        if one.ns < change.began_ns:
            times[one.queue_id] = [one.ns]
        elif one.ns < change.until_ns:
            times.setdefault(one.queue_id, []).append(one.ns)
    return {
        queue_id: round(max((late - early for early, late in pairwise(seen)), default=0) / _NS, 3)
        for queue_id, seen in times.items()
    }


def _repeats(change: Change, handed: Iterable[Handed]) -> int:
    seen: set[tuple[int, int]] = set()
    again = 0
    for one in handed:
        at = (one.queue_id, one.offset)
        again += at in seen and change.began_ns <= one.ns < change.until_ns
        seen.add(at)
    return again
