"""The topics that a consumer subscribes: as the application chose them last, and as its heartbeats have them."""

from collections.abc import Iterable
from typing import NamedTuple

from msgspec import structs

from wakeroll.connection import is_legal
from wakeroll.errors import InvalidUsage
from wakeroll.pattern_choice import NO_PATTERN, PatternChoice
from wakeroll.topic_filters import check_filters, filter_in_words
from wakeroll_model.config import MAX_TOPICS
from wakeroll_model.events import Subscription


class Subscribed(NamedTuple):
    """Subscriptions of a consumer, without the retry topic, and without the topics that its pattern matches."""

    topics: dict[str, str]
    """Topic -> its filter; ``*`` without one."""
    pattern: str | None = None
    """Regular expression of further topics; None if there is none."""
    pattern_filter: str = "*"
    """The filter of these topics; ``*`` without one."""


class TopicSubscriptions:
    """The subscriptions of a consumer, which the control thread changes: one change at a time."""

    def __init__(
        self, subscriptions: Iterable[Subscription], retry_topic: str, pattern: PatternChoice = NO_PATTERN
    ) -> None:
        """Begin with these subscriptions, and without the retry topic.

        Raises:
            InvalidUsage: an expression cannot be parsed; the message names its topic.
        """
        check_filters(subscriptions, pattern)
        self.own = list(subscriptions)
        """Subscriptions of the application, without the retry topic."""
        self.pattern = pattern
        """Pattern of further topics."""
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
        if (named := self.get(topic)) is not None or not (self.pattern.text and is_legal(topic)):
            return named
        expression, expression_type = self.pattern.filter
        return Subscription(topic=topic, expression=expression, expression_type=expression_type)

    def in_words(self) -> Subscribed:
        """Return what the application has subscribed, in its words and its order."""
        filters = {one.topic: filter_in_words(one.expression, one.expression_type) for one in self.own}
        return Subscribed(filters, self.pattern.text or None, filter_in_words(*self.pattern.filter))

    def change(
        self, wanted: Iterable[Subscription], pattern: PatternChoice
    ) -> tuple[list[Subscription], PatternChoice]:
        """Subscribe these topics instead of those so far, and return what heartbeats have from now on.

        Args:
            wanted: the subscriptions, with valid names.
            pattern: pattern of further topics.

        Raises:
            InvalidUsage: an expression cannot be parsed, or there is no room for the retry topic; nothing is changed.
        """
        wanted = list(wanted)
        check_filters(wanted, pattern)
        if self.has_retries and len(wanted) >= MAX_TOPICS:
            raise InvalidUsage(
                f"topics has {len(wanted)} names; with the retry topic of run(), it must have at most {MAX_TOPICS - 1}"
            )
        self._changes += 1
        before = {one.topic: one for one in self.own}
        self.own, self.pattern = [self._versioned(one, before.get(one.topic)) for one in wanted], pattern
        return self._all()

    def take_retries(self, with_retries: bool) -> tuple[list[Subscription], PatternChoice]:
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

    def _all(self) -> tuple[list[Subscription], PatternChoice]:
        return [*self.own, *([Subscription(topic=self._retry_topic)] if self.has_retries else [])], self.pattern
