"""What the members of a world subscribe, and by which of its filters a member may receive a message."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Message

from wakeroll.headers import TAGS_HEADER, pairs_of, texts_of
from wakeroll_model.decisions import OtherFilter
from wakeroll_model.events import Heartbeat
from wakeroll_model.queue import Queue
from wakeroll_model.retry_topics import has_failed_messages
from wakeroll_model.slices import slice_of

APPEARING = ("orders.eu", "orders.us", "returns.eu")
"""Topics that may appear."""
PATTERNS = ("orders.*", "orders[.].*", "returns|orders[.]eu", "(orders|returns).*")

Tags = tuple[str, ...]
"""Tags that a member wants; none: it wants all messages."""


@dataclass(frozen=True)
class Wanted:
    """What a member subscribes."""

    topics: tuple[str, ...]
    tags: Tags
    """Tags of the messages that it wants, in all its topics."""
    pattern: str = ""
    """Regular expression of further topics; empty if there is none."""

    def choice(self) -> Mapping[Any, str]:
        """Return the argument `topics` of `Consumer`."""
        names: list[Any] = [*self.topics, *([re.compile(self.pattern)] if self.pattern else [])]
        return dict.fromkeys(names, " || ".join(self.tags) or "*")

    def has(self, topic: str) -> bool:
        """Return whether it has a topic."""
        return topic in self.topics or bool(self.pattern and re.fullmatch(self.pattern, topic))

    def __str__(self) -> str:
        """Return it in words, for the story."""
        pattern = [f"/{self.pattern}/"] if self.pattern else []
        return f"{', '.join([*self.topics, *pattern])}: {' || '.join(self.tags) or '*'}"


def is_wanted(message: Message, tags: Tags) -> bool:
    """Return whether a member with these tags wants a message."""
    return not tags or (texts_of(pairs_of(message)).get(TAGS_HEADER) or "") in tags


def matches(message: Message, other: OtherFilter) -> bool:
    """Return whether a message matches the filter of another member."""
    return other.topic in ("", message.topic()) and is_wanted(message, _tags(other.expression))


def _tags(expression: str) -> Tags:
    return () if expression == "*" else tuple(expression.split(" || "))


@dataclass(eq=False)
class _Chosen:
    """A subscription of a member."""

    wanted: Wanted
    ended: int | None = None
    """When its call had returned; None before."""


class Choices:
    """What one consumer has subscribed, one after the other, and the queues that it has told its application.

    Times are numbers of `Truth.moment`, which order what happens at the same second of the world.
    """

    def __init__(self, wanted: Wanted) -> None:
        """Begin with the subscription of the constructor, and without queues."""
        self._chosen = [_Chosen(wanted, 0)]
        self.assigned: dict[Queue, int] = {}
        """Queue of which `on_assigned` was called -> when; without those of which `on_revoked` or `on_lost` was."""

    @property
    def is_settled(self) -> bool:
        """Whether no call of `subscribe` is under way."""
        return self._chosen[-1].ended is not None

    def choose(self, wanted: Wanted) -> Callable[[int | None], None]:
        """Note that a call of `subscribe` begins; return what to call when it has ended, with None if it failed."""
        chosen = _Chosen(wanted)
        self._chosen.append(chosen)

        def settle(moment: int | None) -> None:
            chosen.ended = moment
            if moment is None:
                self._chosen.remove(chosen)

        return settle

    def filters(self, topic: str, since: int) -> Iterator[Tags]:
        """Yield the tags by which a message of a topic may be delivered that was taken after `since`.

        A subscription may count from its call on, and must count from the return on. Messages of a topic that was left
        may come until its queues are revoked, also of queues that are assigned meanwhile: by a filter that the topic
        had, or by that of a pattern, because only an observer knows which topics match.
        """
        newest = max(at for at, one in enumerate(self._chosen) if one.ended is not None and one.ended <= since)
        for at, one in enumerate(self._chosen[newest:], newest):
            known = [one.wanted] if one.wanted.has(topic) else [former.wanted for former in self._chosen[: at + 1]]
            yield from (wanted.tags for wanted in known if wanted.has(topic) or wanted.pattern)

    def assigned_since(self, queue: Queue, key: bytes) -> int | None:
        """Return since when the application has a queue, or the slice of it with this key; None if it does not."""
        found = (
            at for one, at in self.assigned.items() if one.whole == queue and slice_of(key, one.slices) == one.slice
        )
        return next(found, None)


@dataclass(frozen=True)
class Beaten:
    """What a heartbeat in the log subscribes."""

    at: int
    """Number of the record in the order of the world."""
    partition: int
    offset: int
    wanted: Mapping[str, Tags]
    """Topic -> tags."""
    pattern: str
    pattern_tags: Tags

    def is_like(self, other: "Beaten") -> bool:
        """Return whether another heartbeat subscribes the same."""
        mine, its = (self.wanted, self.pattern, self.pattern_tags), (other.wanted, other.pattern, other.pattern_tags)
        return mine == its

    @classmethod
    def of(cls, beat: Heartbeat, at: int, partition: int, offset: int) -> "Beaten":
        """Read a heartbeat."""
        wanted = {one.topic: _tags(one.expression) for one in beat.subscriptions if not has_failed_messages(one.topic)}
        return cls(at, partition, offset, wanted, beat.pattern, _tags(beat.pattern_expression))

    def tags(self, topic: str) -> Tags | None:
        """Return the tags that it wants of a topic; None if it does not have the topic."""
        if topic in self.wanted:
            return self.wanted[topic]
        return self.pattern_tags if self.pattern and re.fullmatch(self.pattern, topic) else None


def filter_at(beats: Iterable[Beaten], topic: str) -> tuple[Tags, int] | None:
    """Return the tags of a topic in the last of these heartbeats that has it, and the number of the first such one.

    Any pattern may match it: until an observer has evaluated it, a member keeps its topics,
    by the filter of the pattern.
    None if none has the topic.
    """
    found: tuple[Tags, int] | None = None
    for beat in beats:
        tags = beat.tags(topic)
        if tags is None and beat.pattern:
            tags = beat.pattern_tags
        if tags is not None and (found is None or found[0] != tags):
            found = tags, beat.at
    return found
