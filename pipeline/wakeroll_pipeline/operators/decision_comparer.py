"""The comparison of decisions with their repetitions: coordinators that run at once must publish the same bytes.

Every coordinator publishes every decision, so with two of them each decision occurs twice, often in different batches.
The comparer remembers a hash of each of the last decisions. It compares only while more than one process publishes, so
a single coordinator costs nothing.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

MOST_REMEMBERED = 100_000
"""Maximum number of remembered decisions; a later repetition is not compared."""
MOST_STORED = 20
"""Maximum number of stored differences of one pair of processes in one shard; later ones are only counted."""
WORKS_FOR_S = 600.0
"""For how long decisions are compared after the last batch with decisions of several processes (s)."""


class Seen(NamedTuple):
    """A published decision."""

    partition: int
    offset: int
    """Offset in the decisions topic."""
    shard: str
    """Shard and era, like ``groups-3.1``."""
    seq: int
    writer: str | None
    """Process that published it; None if it is not known."""
    digest: int
    """Hash of its bytes."""


class Difference(NamedTuple):
    """A decision that differs from the first one with the same identity."""

    seen: Seen
    kept_writer: str | None
    """Process that published the first one."""


class DecisionComparer:
    """Remembers decisions, and compares repetitions with them. For one thread."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, str, int], tuple[int, str | None]] = {}
        """Partition, shard and seq -> hash and writer of the first such decision; the oldest comes first."""
        self._writers: deque[tuple[float, frozenset[str]]] = deque()
        """When a batch was read (s), and the processes that published its decisions."""
        self._stored: dict[tuple[str, str | None, str | None], int] = {}
        """Shard and both writers -> differences so far."""
        self.differences = 0
        """Number of differences since the start, stored or not."""

    def must_compare(self, writers: Iterable[str], now_s: float) -> bool:
        """Note the processes that published the decisions of a batch; return whether to compare it.

        Args:
            writers: names of the processes.
            now_s: a monotonic time (s).
        """
        if its := frozenset(writers):
            self._writers.append((now_s, its))
        while self._writers and self._writers[0][0] < now_s - WORKS_FOR_S:
            self._writers.popleft()
        return len(frozenset().union(*(names for _, names in self._writers))) > 1

    def compare(self, decisions: Sequence[Seen]) -> list[Difference]:
        """Compare the decisions of a batch with the earlier ones, and remember them.

        Returns:
            The differences to store: the first ones of each pair of processes in each shard.
        """
        found = []
        for seen in sorted(decisions, key=lambda one: (one.partition, one.offset)):
            identity = seen.partition, seen.shard, seen.seq
            known = self._known.setdefault(identity, (seen.digest, seen.writer))
            if known[0] != seen.digest:
                self.differences += 1
                pair = seen.shard, known[1], seen.writer
                self._stored[pair] = self._stored.get(pair, 0) + 1
                if self._stored[pair] <= MOST_STORED:
                    found.append(Difference(seen, known[1]))
        surplus = len(self._known) - MOST_REMEMBERED
        for identity in list(self._known)[: max(surplus, 0)]:
            del self._known[identity]
        return found
