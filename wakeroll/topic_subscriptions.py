"""The topics that a consumer subscribes: as the application chose them last, and as its heartbeats have them."""

from collections.abc import Iterable
from typing import NamedTuple

from msgspec import structs

from wakeroll.connection import is_legal
from wakeroll.errors import InvalidUsage
from wakeroll.topic_filters import Sql92, check_filters
from wakeroll_model.config import MAX_TOPICS
from wakeroll_model.events import Subscription


class Subscribed(NamedTuple):
    """Subscriptions of a consumer, without the retry topic, and without the topics that its pattern matches."""

    topics: dict[str, str]
    """Topic -> its filter; ``*`` without one."""
    pattern: str | None = None
    """Regular expression of further topics; None if there is none."""


class TopicSubscriptions:
    """The subscriptions of a consumer, which the control thread changes: one change at a time."""

    def __init__(self, subscriptions: Iterable[Subscription], retry_topic: str, pattern: str = "") -> None:
        """Begin with these subscriptions, and without the retry topic.

        Raises:
            InvalidUsage: an expression cannot be parsed; the message names its topic.
        """
        check_filters(subscriptions)
        self.own = list(subscriptions)
        """Subscriptions of the application, without the retry topic."""
        self.pattern = pattern
        """Regular expression of further topics; empty if there is none."""
        self.has_retries = False
        """Whether this member subscribes the group's retry topic."""
        self._retry_topic = retry_topic
        self._changes = 0

    @property
    def topics(self) -> list[str]:
        """The topics that the application has subscribed, in its order."""
        return [one.topic for one in self.own]

    def get(self, topic: str) -> Subscription | None:
        """Return the subscription of a topic that the application has named; None if it has not."""
        return next((one for one in self.own if one.topic == topic), None)

    def may_fetch(self, topic: str) -> Subscription | None:
        """Return the subscription of a topic; None if none is possible.

        With a pattern, any topic may be one that matches: only an observer knows.
        """
        return self.get(topic) or (Subscription(topic=topic) if self.pattern and is_legal(topic) else None)

    def in_words(self) -> Subscribed:
        """Return what the application has subscribed, in its words and its order."""
        filters = {
            one.topic: Sql92(one.expression) if one.expression_type == "SQL92" else one.expression for one in self.own
        }
        return Subscribed(filters, self.pattern or None)

    def change(self, wanted: Iterable[Subscription], pattern: str) -> tuple[list[Subscription], str]:
        """Subscribe these topics instead of those so far, and return what heartbeats have from now on.

        Args:
            wanted: the subscriptions, with valid names.
            pattern: expression of further topics; empty: none.

        Raises:
            InvalidUsage: an expression cannot be parsed, or there is no room for the retry topic; nothing is changed.
        """
        wanted = list(wanted)
        check_filters(wanted)
        if self.has_retries and len(wanted) >= MAX_TOPICS:
            raise InvalidUsage(
                f"topics has {len(wanted)} names; with the retry topic of run(), it must have at most {MAX_TOPICS - 1}"
            )
        self._changes += 1
        before = {one.topic: one for one in self.own}
        self.own, self.pattern = [self._versioned(one, before.get(one.topic)) for one in wanted], pattern
        return self._all()

    def take_retries(self, with_retries: bool) -> tuple[list[Subscription], str]:
        """Subscribe the retry topic too, or no more; return what heartbeats have from now on."""
        self.has_retries = with_retries
        return self._all()

    def _versioned(self, wanted: Subscription, before: Subscription | None) -> Subscription:
        """Return a subscription with a higher version than any other filter of its topic had."""
        if before is not None and (before.expression, before.expression_type) == (
            wanted.expression,
            wanted.expression_type,
        ):
            return before
        return structs.replace(wanted, version=self._changes)

    def _all(self) -> tuple[list[Subscription], str]:
        return [*self.own, *([Subscription(topic=self._retry_topic)] if self.has_retries else [])], self.pattern
