"""The committed offsets of a watched group: which of them must be committed or reset so that they are on record here.

The owner of a queue commits an offset that advanced. An offset that moved back, or whose queue has no owner, is reset
by an operator.
"""

import hashlib
from collections.abc import Collection, Iterator, Mapping
from itertools import groupby
from operator import attrgetter

from msgspec import Struct

from wakeroll_model import config
from wakeroll_model.events import CommittedOffset, Reset, ResetOffset
from wakeroll_model.queue import Queue

RESET_EVERY_MS = 60_000
"""Two resets of a topic are at least so far apart, ms: each of them is a new epoch. A consumer that commits without
being a member commits every few seconds."""
REPEAT_MS = 10_000
"""Pause before an unanswered commit or reset is repeated, ms; of a reset doubled each time."""
LONGEST_REPEAT_MS = 600_000
BY = "watch-kafka"
"""The operator on record."""
ASKED = "to the offsets of the watched group: they moved back, or nobody owns their queues"


class _Asked(Struct):
    """A reset of one topic that was sent."""

    request: Reset
    sent_ms: int
    again_ms: int
    pause_ms: int = REPEAT_MS


class WatchedOffsets:
    """Compares the offsets of a watched group with those on record."""

    def __init__(self, group_id: str) -> None:
        """Begin without any offset on record."""
        self._group_id = group_id
        self._known: dict[Queue, int] = {}
        """Queue -> committed offset on record, as far as is known."""
        self._sent: dict[Queue, tuple[int, int]] = {}
        """Queue -> the offset of its last commit, and when it may be repeated."""
        self._wrong_since: dict[Queue, int] = {}
        """Queue whose offset on record needs a reset -> when that was first seen."""
        self._asked: dict[str, _Asked] = {}
        """Topic -> its last reset."""

    def note(self, queue: Queue, offset: int) -> None:
        """Note an offset that is on record; -1 if it was deleted."""
        self._known[queue] = offset
        self._sent.pop(queue, None)

    def commits(
        self, offsets: Mapping[Queue, int], owners: Mapping[Queue, str], now_ms: int
    ) -> dict[str, list[CommittedOffset]]:
        """Return client -> the offsets that it must commit.

        Args:
            offsets: queue -> committed offset of the watched group.
            owners: queue -> owner on record.
            now_ms: monotonic time, ms.
        """
        commits: dict[str, list[CommittedOffset]] = {}
        for queue, offset in sorted(offsets.items()):
            client_id = owners.get(queue)
            if client_id is None or offset <= self._known.get(queue, -1):
                continue
            sent, again_ms = self._sent.get(queue, (-1, 0))
            if offset == sent and now_ms < again_ms:
                continue
            self._sent[queue] = (offset, now_ms + REPEAT_MS)
            commits.setdefault(client_id, []).append(CommittedOffset(queue=queue, offset=offset))
        return commits

    def resets(
        self, offsets: Mapping[Queue, int], owned: Collection[Queue], epoch: int, now_ms: int, *, has_members: bool
    ) -> Iterator[Reset]:
        """Yield the resets, one per topic, because a reset with an unknown queue is rejected as a whole.

        Args:
            offsets: queue -> committed offset of the watched group.
            owned: queues that have an owner on record, or will have one soon.
            epoch: epoch of the group, which makes the id of a request unique.
            now_ms: monotonic time, ms.
            has_members: whether a queue without an owner may be on its way to one.
        """
        since = {
            queue: self._wrong_since.get(queue, now_ms)
            for queue, offset in sorted(offsets.items())
            if self._is_lower(queue, offset) or (self._known.get(queue) != offset and queue not in owned)
        }
        self._wrong_since = since
        due = [queue for queue in since if self._is_due(queue, offsets[queue], now_ms, has_members=has_members)]
        for topic, queues in groupby(due, key=attrgetter("topic")):
            wanted = [ResetOffset(queue=queue, offset=offsets[queue]) for queue in queues][: config.MAX_QUEUES]
            if request := self._request(topic, wanted, epoch, now_ms):
                yield request

    def _is_lower(self, queue: Queue, offset: int) -> bool:
        return offset < self._known.get(queue, offset)

    def _is_due(self, queue: Queue, offset: int, now_ms: int, *, has_members: bool) -> bool:
        """Return whether a wrong offset on record must be corrected now.

        An offset that moved back must be seen twice: another process may have put a newer one on record after this one
        had looked. While members exchange queues, a queue without an owner will have one, who commits.
        """
        age_ms = now_ms - self._wrong_since[queue]
        if self._is_lower(queue, offset):
            return age_ms > 0
        return not has_members or age_ms >= RESET_EVERY_MS

    def _request(self, topic: str, wanted: list[ResetOffset], epoch: int, now_ms: int) -> Reset | None:
        """Return the reset of a topic; None if it is too early for another one."""
        asked = self._asked.get(topic)
        if asked is not None and asked.request.offsets == wanted:
            if now_ms < asked.again_ms:
                return None
            asked.pause_ms = min(2 * asked.pause_ms, LONGEST_REPEAT_MS)
            asked.again_ms = now_ms + asked.pause_ms
            return asked.request
        if asked is not None and now_ms - asked.sent_ms < RESET_EVERY_MS:
            return None
        request = Reset(
            request_id=self._request_id(wanted, epoch), group_id=self._group_id, offsets=wanted, asked=ASKED, by=BY
        )
        self._asked[topic] = _Asked(request, now_ms, now_ms + REPEAT_MS)
        return request

    def _request_id(self, wanted: list[ResetOffset], epoch: int) -> str:
        words = [self._group_id, str(epoch), *(f"{entry.queue.key}={entry.offset}" for entry in wanted)]
        return hashlib.blake2b("\n".join(words).encode(), digest_size=16).hexdigest()
