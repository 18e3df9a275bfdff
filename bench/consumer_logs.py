"""What the consumers of a measurement handed out, by their own logs (see `bench.consumers`), and what a change did.

All times are ns of the monotonic clock.
"""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Literal, NamedTuple

from msgspec import Struct

from bench.decision_reader import PartId, part_of
from bench.running_system import QueueId
from wakeroll_pipeline.local.story_checks import Handled, doubly_owned


class Delivery(NamedTuple):
    """A message that a consumer handled."""

    handled: Handled
    delay_ms: int
    """From the message's time to its handling."""


class _Offsets:
    """Offsets of a queue, in memory that does not grow while there is no gap."""

    def __init__(self) -> None:
        self._below = 0
        """All smaller ones are there."""
        self._others: set[int] = set()

    def add(self, offset: int) -> None:
        if offset >= self._below:
            self._others.add(offset)
        while self._below in self._others:
            self._others.remove(self._below)
            self._below += 1

    def __len__(self) -> int:
        return self._below + len(self._others)


class HandledOffsets:
    """Which messages were handled, by the logs of several processes, read on as they grow."""

    def __init__(self) -> None:
        self._offsets: dict[QueueId, _Offsets] = defaultdict(_Offsets)
        self._read: dict[Path, int] = {}
        """Log -> bytes that were read."""

    def follow(self, logs: Iterable[Path]) -> None:
        """Read what was added."""
        for path in logs:
            for line in self._new_lines(path):
                self._learn(path, line.split())

    def missing(self, ends: Mapping[QueueId, int]) -> dict[QueueId, int]:
        """Return the number of messages that nobody has handled, by queue; queues without any are left out.

        Args:
            ends: end offset of each queue; its first message has offset 0.
        """
        counts = {queue: end - len(self._offsets[queue]) for queue, end in ends.items()}
        return {queue: count for queue, count in counts.items() if count}

    def _learn(self, path: Path, fields: list[str]) -> None:
        match fields:
            case [_, "began" | "leaving", _]:
                pass
            case [_, topic, queue_id, offset, _, _, _]:
                self._offsets[topic, int(queue_id)].add(int(offset))
            case _:
                raise ValueError(f"{path} has a line that is neither a message nor a mark: {fields}")

    def _new_lines(self, path: Path) -> list[str]:
        """Return the lines that were added since the last call; a line without its end is left for the next one."""
        if not path.exists():
            return []
        with path.open("rb") as file:
            file.seek(self._read.get(path, 0))
            text = file.read()
        complete = text[: text.rfind(b"\n") + 1]
        self._read[path] = self._read.get(path, 0) + len(complete)
        return complete.decode("ascii").splitlines()


class ConsumerLogs(HandledOffsets):
    """The same with every delivery, for a judgement."""

    def __init__(self) -> None:
        super().__init__()
        self.deliveries: dict[QueueId, list[Delivery]] = defaultdict(list)
        """Those of one process are in order."""
        self.last: dict[QueueId, Handled] = {}
        """Queue -> its message that was handed out last."""
        self.began: dict[Path, int] = {}
        """Log -> when its consumer began."""
        self.leaving: dict[Path, int] = {}
        """Log -> when its consumer began to leave."""

    def in_order(self) -> list[Handled]:
        """Return all messages by the time of their handling."""
        every = (one.handled for of_queue in self.deliveries.values() for one in of_queue)
        return sorted(every, key=lambda one: one.start_ns)

    def delays_ms(self, bounds_ns: Sequence[int]) -> list[list[int]]:
        """Return the delays of first deliveries (ms) between each two bounds (monotonic ns, in order)."""
        delays: list[list[int]] = [[] for _ in bounds_ns[1:]]
        for of_queue in self.deliveries.values():
            seen = set[int]()
            for one in sorted(of_queue, key=lambda one: one.handled.start_ns):
                place = bisect_left(bounds_ns, one.handled.start_ns) - 1
                if one.handled.offset not in seen and 0 <= place < len(delays):
                    delays[place].append(one.delay_ms)
                seen.add(one.handled.offset)
        return delays

    def repeats(self) -> list[int]:
        """Return when messages were handled again (monotonic ns), in order."""
        found = []
        for of_queue in self.deliveries.values():
            seen = set[int]()
            for one in sorted(of_queue, key=lambda one: one.handled.start_ns):
                if one.handled.offset in seen:
                    found.append(one.handled.start_ns)
                seen.add(one.handled.offset)
        return sorted(found)

    def two_owners(self, grants: Mapping[PartId, int], cut: Collection[str] = ()) -> list[QueueId]:
        """Return the queues that two clients owned at the same time, or the same part of them, sorted.

        Args:
            grants: number of times that each part was assigned; see `doubly_owned`.
            cut: topics whose queues are or were cut into slices.
        """
        parts: dict[PartId, list[Handled]] = defaultdict(list)
        for (topic, queue_id), of_queue in self.deliveries.items():
            for one in of_queue:
                part = part_of(one.handled.offset) if topic in cut else 0
                parts[topic, queue_id, part].append(one.handled)
        return sorted(
            {
                (topic, queue_id)
                for (topic, queue_id, part), handled in parts.items()
                if doubly_owned(
                    sorted(handled, key=lambda one: one.start_ns),
                    Counter({queue_id: grants.get((topic, queue_id, part), 0)}),
                )
            }
        )

    def _learn(self, path: Path, fields: list[str]) -> None:
        super()._learn(path, fields)
        match fields:
            case [_, "began", ns]:
                self.began[path] = int(ns)
            case [_, "leaving", ns]:
                self.leaving[path] = int(ns)
            case [client_id, topic, *numbers]:
                queue_id, offset, start_ns, end_ns, delay_ms = map(int, numbers)
                one = Handled(client_id, queue_id, offset, start_ns, end_ns)
                self.deliveries[topic, queue_id].append(Delivery(one, delay_ms))
                last = self.last.get((topic, queue_id), one)
                self.last[topic, queue_id] = one if one.start_ns >= last.start_ns else last


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
