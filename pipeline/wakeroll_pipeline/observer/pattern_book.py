"""The patterns that members subscribe, the topics that match them, and the times to send these to the groups.

Patterns come from clients, so they are evaluated by RE2: its time grows with the length of the name alone, whatever the
expression is, and its memory is bounded.
"""

from collections.abc import Collection, Iterable

import re2

from wakeroll.connection import Topics
from wakeroll.topic_patterns import may_match
from wakeroll_model.config import MAX_DETAIL, MAX_TOPICS
from wakeroll_model.events import Matches
from wakeroll_pipeline.observer.topic_routes import FORGET_READS, REFRESH_MS

LIST_MS = 5_000
"""Interval in which the topics of the cluster are listed while a member has a pattern (ms). The answer has all
partitions of the cluster: about 1 MB for 3,000 topics with ten partitions each."""
_MEMORY_BYTES = 1024 * 1024
"""Maximum memory of one compiled pattern (bytes)."""


class _Expression:
    """A compiled pattern."""

    def __init__(self, pattern: str) -> None:
        options = re2.Options()
        options.max_mem = _MEMORY_BYTES
        options.log_errors = False
        self.problem = ""
        try:
            self._compiled = re2.compile(pattern, options)
        except re2.error as error:
            reason = error.args[0]
            text = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
            self.problem = f"pattern {pattern!r} is no expression of RE2: {text}"

    def matching(self, topics: Iterable[str]) -> list[str]:
        """Return the topics whose whole names match; none if the pattern cannot be compiled."""
        return [] if self.problem else [topic for topic in topics if self._compiled.fullmatch(topic)]


def matching_topics(pattern: str, topics: Iterable[str]) -> list[str]:
    """Return the topics whose whole names match a pattern; none if RE2 does not accept it."""
    return _Expression(pattern).matching(topics)


class _Watch:
    """One pattern of one group, and the topics that were last sent to the group."""

    def __init__(self, group_id: str, pattern: str) -> None:
        self.now = Matches(group_id=group_id, pattern=pattern)
        self.is_known = False
        """Whether the topics have been listed since the pattern was first received."""
        self.sent: Matches | None = None
        self.sent_ms = 0
        self.reads_unsubscribed = 0


class PatternBook:
    """All patterns that members have subscribed lately."""

    def __init__(self, names: Topics) -> None:
        """Begin without patterns; `names` are the control topics, which no pattern matches."""
        self._names = names
        self._watches: dict[tuple[str, str], _Watch] = {}
        self._expressions: dict[str, _Expression] = {}
        self._listed_ms: int | None = None

    def __len__(self) -> int:
        return len(self._watches)

    def note(self, group_id: str, pattern: str) -> None:
        """Note that a member of a group subscribes a pattern."""
        watch = self._watches.get((group_id, pattern))
        if watch is None:
            watch = self._watches[group_id, pattern] = _Watch(group_id, pattern)
            self._listed_ms = None  # a member that joins waits for its topics
        watch.reads_unsubscribed = 0

    def must_list(self, now_ms: int) -> bool:
        """Return whether the topics of the cluster must be listed now; `now_ms` is any clock that never goes back."""
        return bool(self._watches) and (self._listed_ms is None or now_ms - self._listed_ms >= LIST_MS)

    def postpone(self, now_ms: int) -> None:
        """Note that the topics could not be listed: they are listed again in a second."""
        self._listed_ms = now_ms - LIST_MS + 1_000

    def learn(self, topics: Collection[str], now_ms: int) -> set[str]:
        """Process the present topics of the cluster; return those that match any pattern."""
        self._listed_ms = now_ms
        patterns = {pattern for _, pattern in self._watches}
        self._expressions = {one: self._expressions.get(one) or _Expression(one) for one in patterns}
        allowed = sorted(topic for topic in topics if may_match(topic, self._names))
        found = {pattern: expression.matching(allowed) for pattern, expression in self._expressions.items()}
        for (group_id, pattern), watch in self._watches.items():
            watch.now = _matches(group_id, pattern, found[pattern], self._expressions[pattern].problem)
            watch.is_known = True
        return {topic for watch in self._watches.values() for topic in watch.now.topics}

    def due(self, now_ms: int) -> list[Matches]:
        """Return the matches to send to groups now: changed ones, and from time to time all of them again."""
        due = [
            watch
            for watch in self._watches.values()
            if watch.is_known and (watch.sent != watch.now or now_ms - watch.sent_ms >= REFRESH_MS)
        ]
        for watch in due:
            watch.sent, watch.sent_ms = watch.now, now_ms
        return [watch.now for watch in due]

    def mark_lost(self, lost: Matches) -> None:
        """Note that a group did not receive its matches, so that they are due again."""
        if (watch := self._watches.get((lost.group_id, lost.pattern))) is not None:
            watch.sent = None

    def repeat(self, topic: str) -> None:
        """Make the matches of a deleted topic due again: groups keep it as long as its route has queues."""
        for watch in self._watches.values():
            if (expression := self._expressions.get(watch.now.pattern)) and expression.matching([topic]):
                watch.sent = None

    def forget(self) -> None:
        """Count a read, one per second; drop the patterns that no member has subscribed for ten minutes."""
        for place, watch in list(self._watches.items()):
            watch.reads_unsubscribed += 1
            if watch.reads_unsubscribed > FORGET_READS:
                del self._watches[place]


def _matches(group_id: str, pattern: str, topics: list[str], problem: str) -> Matches:
    if len(topics) > MAX_TOPICS:
        problem = f"pattern {pattern!r} matches {len(topics)} topics; only {MAX_TOPICS} of them are subscribed"
    return Matches(group_id=group_id, pattern=pattern, topics=topics[:MAX_TOPICS], problem=problem[:MAX_DETAIL])
