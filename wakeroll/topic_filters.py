"""The filters of a consumer's topics: which messages `poll` and `fetch` deliver."""

from collections.abc import Iterable

from confluent_kafka import Message

from wakeroll.errors import InvalidUsage
from wakeroll.headers import wants
from wakeroll_model.events import Subscription
from wakeroll_model.filters import FilterError, ParsedSubscription, parse
from wakeroll_model.filters.tags import ALL


class Sql92(str):
    """A condition on a message's properties, in the SQL92 subset of RocketMQ; a plain string means tags.

    >>> Consumer("billing", {"orders": Sql92("amount > 10 AND region = 'EU'")}, "localhost:9092")  # doctest: +SKIP
    """

    __slots__ = ()


class TopicFilters:
    """The parsed filter of each subscribed topic. A message's headers decide; an exact tag must match, not its code."""

    def __init__(self, subscriptions: Iterable[Subscription]) -> None:
        """Parse the expressions.

        Raises:
            InvalidUsage: an expression cannot be parsed; the message names its topic.
        """
        self._parsed = _parse_all(subscriptions)

    def update(self, subscriptions: Iterable[Subscription], held: Iterable[str]) -> None:
        """Use these filters from now on; topics that were left and have queues still keep theirs (`held`)."""
        left = {topic: parsed for topic in held if (parsed := self._parsed.get(topic)) is not None}
        self._parsed = left | _parse_all(subscriptions)

    def is_filter_of(self, subscription: Subscription) -> bool:
        """Return whether a topic has the filter of this subscription."""
        known, wanted = self._parsed.get(subscription.topic), _parse(subscription)
        if known is None or wanted is None:
            return known is wanted
        return (known.expression, known.expression_type) == (wanted.expression, wanted.expression_type)

    def select(self, topic: str, messages: list[Message]) -> list[Message]:
        """Return the messages that match the topic's filter."""
        parsed = self._parsed.get(topic)
        return messages if parsed is None else [message for message in messages if wants(parsed, message)]

    def wants(self, topic: str, message: Message) -> bool:
        """Return whether a message of this topic matches the topic's filter."""
        parsed = self._parsed.get(topic)
        return parsed is None or wants(parsed, message)


def _parse_all(subscriptions: Iterable[Subscription]) -> dict[str, ParsedSubscription]:
    return {one.topic: parsed for one in subscriptions if (parsed := _parse(one)) is not None}


def _parse(subscription: Subscription) -> ParsedSubscription | None:
    """Parse an expression; None if it matches all messages: then headers are not decoded at all. Raises: InvalidUsage.

    The message of the error names the topic.
    """
    try:
        parsed = parse(subscription.expression, subscription.expression_type)
    except FilterError as error:
        raise InvalidUsage(f"cannot parse the expression of {subscription.topic}: {error}") from None
    return None if parsed.expression == ALL else parsed
