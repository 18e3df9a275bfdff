"""The filters of a consumer: which messages `poll` and `fetch` deliver."""

from collections.abc import Iterable

from confluent_kafka import Message

from wakeroll.errors import InvalidUsage
from wakeroll.headers import wants
from wakeroll.pattern_choice import PatternChoice
from wakeroll_model.events import Subscription
from wakeroll_model.filters import FilterError, ParsedSubscription, parse
from wakeroll_model.filters.tags import ALL


class Sql92(str):
    """A condition on a message's properties, in the SQL92 subset of RocketMQ; a plain string means tags.

    >>> Consumer("billing", {"orders": Sql92("amount > 10 AND region = 'EU'")}, "localhost:9092")  # doctest: +SKIP
    """

    __slots__ = ()


def filter_in_words(expression: str, expression_type: str) -> str:
    """Return a filter as an application passes it."""
    return Sql92(expression) if expression_type == "SQL92" else expression


def check_filters(subscriptions: Iterable[Subscription], pattern: PatternChoice) -> None:
    """Parse the expressions.

    Raises:
        InvalidUsage: an expression cannot be parsed; the message names its topic, or the pattern.
    """
    named = [(one.topic, one.expression, one.expression_type) for one in subscriptions]
    for name, expression, expression_type in (*named, (f"pattern {pattern.text!r}", *pattern.filter)):
        try:
            parsed_filter(expression, expression_type)
        except FilterError as error:
            raise InvalidUsage(f"cannot parse the expression of {name}: {error}") from None


def parsed_filter(expression: str, expression_type: str) -> ParsedSubscription | None:
    """Parse an expression; None if it matches all messages: then headers are not decoded at all.

    Raises:
        FilterError: it cannot be parsed.
    """
    parsed = parse(expression, expression_type)
    return None if parsed.expression == ALL else parsed


def select(parsed: ParsedSubscription | None, messages: list[Message]) -> list[Message]:
    """Return the messages that match a filter; an exact tag must match, not its code."""
    return messages if parsed is None else [message for message in messages if wants(parsed, message)]
