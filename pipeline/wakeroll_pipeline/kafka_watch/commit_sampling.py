"""Samples of committed offsets: of the commits of a queue within a short time, the last one goes on record."""

from collections.abc import Iterator
from typing import NamedTuple

SHORTEST_MS = 1_000
"""Shortest time between two samples of a queue (ms)."""
_COMMITS = (b"\0\0", b"\0\1")
"""How the keys of commits begin: with the type of the record."""


class RawRecord(NamedTuple):
    """A record of `__consumer_offsets` that is not decoded yet."""

    at_ms: int
    """Time of the record (epoch ms)."""
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None


def group_in(key: bytes) -> bytes:
    """Return the part of a key that names the group; records of the same group have the same."""
    return key[4 : 4 + int.from_bytes(key[2:4], "big")]


class CommitSampler:
    """Holds back commits until the next sample, so that most of them are never decoded. For one thread.

    A group's commits that were held back come before any other record of the group: they are of its owners until then.
    """

    def __init__(self) -> None:
        self._held: dict[bytes, dict[bytes, RawRecord]] = {}
        """Group -> key of a queue -> its newest commit."""
        self._since_ms: int | None = None
        """Time of the first commit that is held back (epoch ms); None if there is none."""
        self.interval_ms = SHORTEST_MS
        """Time between two samples (ms)."""
        self.skipped = 0
        """Commits that a later one of the same queue has replaced."""

    def take(self, record: RawRecord) -> Iterator[list[RawRecord]]:
        """Take the next record in order of time; yield what goes on record, the records of a group together."""
        if self._since_ms is not None and record.at_ms - self._since_ms >= self.interval_ms:
            yield from self.take_all()
        key = record.key
        if key is None or key[:2] not in _COMMITS:
            if key is not None and (held := self._held.pop(group_in(key), None)):
                yield list(held.values())
            yield [record]
            return
        held = self._held.setdefault(group_in(key), {})
        self.skipped += held.pop(key, None) is not None
        held[key] = record
        if self._since_ms is None:
            self._since_ms = record.at_ms

    def take_all(self) -> Iterator[list[RawRecord]]:
        """Yield all commits that are held back, those of a group together."""
        held, self._held, self._since_ms = self._held, {}, None
        yield from (list(commits.values()) for commits in held.values())
