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
        self._parsed: dict[str, ParsedSubscription] = {}
        for subscription in subscriptions:
            try:
                parsed = parse(subscription.expression, subscription.expression_type)
            except FilterError as error:
                raise InvalidUsage(f"cannot parse the expression of {subscription.topic}: {error}") from None
            if parsed.expression != ALL:  # without a filter, headers are not decoded at all
                self._parsed[subscription.topic] = parsed

    def select(self, topic: str, messages: list[Message]) -> list[Message]:
        """Return the messages that match the topic's filter."""
        parsed = self._parsed.get(topic)
        return messages if parsed is None else [message for message in messages if wants(parsed, message)]

    def wants(self, topic: str, message: Message) -> bool:
        """Return whether a message of this topic matches the topic's filter."""
        parsed = self._parsed.get(topic)
        return parsed is None or wants(parsed, message)
