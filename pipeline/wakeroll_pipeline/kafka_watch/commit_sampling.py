"""Samples of committed offsets: only the last commit of a queue within a short time is recorded.

Most commits are replaced before a sample is taken. These cost little, because records are compared by their raw keys,
and only recorded ones are decoded.
"""

import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from confluent_kafka import Message

MOST_HELD = 20_000
"""Maximum number of commits of a partition that are held back; then a sample is taken earlier."""
MOST_BYTES = 4 * 1024 * 1024
"""Maximum size of the values of a partition that are held back (bytes); then a sample is taken earlier."""
MOST_KEYS = 50_000
"""Maximum number of cached keys of a partition; beyond it, the cache is cleared."""
_COMMITS = (b"\0\0", b"\0\1")
"""Prefixes of the keys of commits: the types of the record."""
_SHORTEST_KEY = 4
"""Number of bytes of the shortest key: that of a group with an empty name."""


class Mark(NamedTuple):
    """Progress of recording a partition."""

    next_offset: int
    """Offset of the first record to read after a restart."""
    read_offset: int
    """All records below it are recorded, except commits from `next_offset` on that are held back."""


class Step(NamedTuple):
    """Records of a partition that are recorded together."""

    at_ms: int
    """The highest time in the partition so far (epoch ms), so that a clock that was set back does not reorder
    records."""
    partition: int
    groups: list[list[Message]]
    """The records, grouped by their consumer group."""
    mark: Mark
    """Progress of recording the partition after these records."""


def group_in(key: bytes) -> bytes:
    """Return the part of a key that names the group; it is equal for all records of the group."""
    return key[4 : 4 + int.from_bytes(key[2:4], "big")]


def time_of(message: Message) -> int:
    """Return the time of a record (epoch ms)."""
    return message.timestamp()[1]


def offset_of(message: Message) -> int:
    """Return the offset of a record."""
    return message.offset() or 0


class CommitSampler:
    """Holds back the commits of one partition until the next sample. For one thread.

    The commits of a group that are held back are recorded before any other record of the group, because they belong to
    its owners before that record. After a restart, records before `Mark.read_offset` are read again only to hold back
    the same commits as before.
    """

    def __init__(self, partition: int, mark: Mark, is_wanted: Callable[[bytes], bool], phase: float = 0.0) -> None:
        """Begin.

        Args:
            partition: number of the partition.
            mark: progress of recording it.
            is_wanted: whether a group is watched, by its name in the keys.
            phase: when within an interval samples are taken, from 0 to 1; it differs between partitions.
        """
        self._partition = partition
        self._position = mark.next_offset
        """Offset after the last record that was read."""
        self._again = mark.read_offset
        self._is_wanted = is_wanted
        self._phase = phase
        self._groups: dict[bytes, bytes] = {}
        """Key of a commit -> its group."""
        self._keys: dict[bytes, list[bytes]] = {}
        """Group -> the keys of its commits."""
        self._unwanted: set[bytes] = set()
        """Keys of commits of groups that are not watched."""
        self._held: dict[bytes, Message] = {}
        """Key of a queue -> its newest commit."""
        self._bytes = 0
        """Size of the values that were held back, including replaced ones (bytes)."""
        self._first = 0
        """Offset of the first commit since the last sample; meaningless if none is held back."""
        self._ends_ms = 0
        """Time of the next sample (epoch ms); meaningless if no commit is held back."""
        self._began_s = 0.0
        self.reached_ms = -1
        """The highest time so far (epoch ms); -1 before the first record."""

    @property
    def mark(self) -> Mark:
        """Progress of recording the partition after all steps so far."""
        first = self._first if self._held else self._position
        return Mark(first, max(self._position, self._again))

    def take(self, run: Sequence[Message], interval_ms: int) -> list[Step]:
        """Process the next records, in order; return the steps to record.

        Args:
            run: the records.
            interval_ms: time between two samples (ms).
        """
        steps: list[Step] = []
        if len(self._groups) + len(self._unwanted) > MOST_KEYS:
            self._forget_keys()
        keys = list(map(Message.key, run))
        fresh = set(keys).difference(self._groups, self._unwanted)
        begin = 0
        if fresh:
            others = {key for key in fresh if not self._is_commit(key)}
            for at in [at for at, key in enumerate(keys) if key in others] if others else ():
                self._hold(run, keys, begin, at, interval_ms, steps)
                self._take_other(run[at], keys[at], steps)
                begin = at + 1
        self._hold(run, keys, begin, len(run), interval_ms, steps)
        return steps

    def flush(self, waits_s: float = 0.0) -> list[Step]:
        """Return a sample if the first commit that is held back has waited for this time (s)."""
        if not self._held or self._position < self._again or time.monotonic() - self._began_s < waits_s:
            return []
        return [self._sample(self._position)]

    def _is_commit(self, key: bytes | None) -> bool:
        """Return whether a key is that of a commit; cache a key of a commit."""
        if key is None or key[:2] not in _COMMITS or len(key) < _SHORTEST_KEY:
            return False
        group = group_in(key)
        if self._is_wanted(group):
            self._groups[key] = group
            self._keys.setdefault(group, []).append(key)
        else:
            self._unwanted.add(key)
        return True

    def _hold(
        self,
        run: Sequence[Message],
        keys: Sequence[bytes | None],
        begin: int,
        end: int,
        interval_ms: int,
        steps: list[Step],
    ) -> None:
        """Hold back commits; take the samples that are due between them."""
        while begin < end:
            if not self._held:
                self._begin(run[begin], interval_ms)
            cut = end
            if time_of(run[end - 1]) >= self._ends_ms:
                cut = bisect_left(run, self._ends_ms, begin, end, key=time_of)
            if self._position < self._again:
                cut = end
            if not self._held:
                cut = max(cut, begin + 1)
            if cut > begin:
                self._keep(run[begin:cut], keys[begin:cut])
            if cut < end or self._is_full():
                steps.append(self._sample(offset_of(run[cut]) if cut < end else self._position))
            begin = cut

    def _begin(self, first: Message, interval_ms: int) -> None:
        self._first, self._began_s, self._bytes = offset_of(first), time.monotonic(), 0
        shift_ms = round(interval_ms * self._phase)
        at_ms = time_of(first)
        self._ends_ms = at_ms + interval_ms - (at_ms - shift_ms) % interval_ms

    def _keep(self, run: Sequence[Message], keys: Sequence[bytes | None]) -> None:
        pairs = zip(keys, run, strict=True)
        if self._unwanted:
            self._held.update((key, one) for key, one in pairs if key is not None and key not in self._unwanted)
        else:
            self._held.update(pairs)  # type: ignore[arg-type]  # commits have keys
        self._bytes += sum(map(len, run))
        self._pass_to(run[-1])

    def _is_full(self) -> bool:
        """Return whether no more commits may be held back."""
        if self._bytes > 2 * MOST_BYTES:
            self._bytes = sum(map(len, self._held.values()))
        is_full = len(self._held) >= MOST_HELD or self._bytes > MOST_BYTES
        return is_full and self._position >= self._again

    def _sample(self, offset: int) -> Step:
        """Return all commits that are held back; clear unused keys.

        Args:
            offset: offset of the first record after the sample.
        """
        by_group: dict[bytes, list[Message]] = {}
        for key, message in self._held.items():
            by_group.setdefault(self._groups[key], []).append(message)
        self._held = {}
        groups = [_in_order(its) for its in by_group.values()]
        return Step(self.reached_ms, self._partition, groups, Mark(offset, offset))

    def _take_other(self, message: Message, key: bytes | None, steps: list[Step]) -> None:
        """Process a record that is not a commit: the commits of its group that are held back are recorded first."""
        is_again = offset_of(message) < self._again
        self._pass_to(message)
        its: list[Message] = []
        if key is not None and len(key) >= _SHORTEST_KEY:
            group = group_in(key)
            if not self._is_wanted(group):
                return
            held = (self._held.pop(one, None) for one in self._keys.get(group, ()))
            its = _in_order(one for one in held if one is not None)
        if not is_again:
            groups = [its, [message]] if its else [[message]]
            steps.append(Step(self.reached_ms, self._partition, groups, self.mark))

    def _forget_keys(self) -> None:
        """Remove the keys without a commit that is held back."""
        self._groups = {key: self._groups[key] for key in self._held}
        self._keys, self._unwanted = {}, set()
        for key, group in self._groups.items():
            self._keys.setdefault(group, []).append(key)

    def _pass_to(self, message: Message) -> None:
        self._position = offset_of(message) + 1
        self.reached_ms = max(self.reached_ms, time_of(message))


def _in_order(records: Iterable[Message]) -> list[Message]:
    return sorted(records, key=offset_of)
