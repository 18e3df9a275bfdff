"""The match of a message with a subscription: the check of RocketMQ's broker, then that of its client.

The broker compares the codes of tags in its consume queue, and evaluates conditions on the properties of the message.
The client compares the tags themselves, and drops messages that only have an equal code.  `matches` does both.
"""

from collections.abc import Mapping

from wakeroll_model.filters import sql92
from wakeroll_model.filters.subscription import ParsedSubscription, is_tag_type
from wakeroll_model.filters.tags import ALL, low_32_bits

Properties = Mapping[str, str]

TAGS_PROPERTY = "TAGS"
"""Property in which RocketMQ stores the tags of a message; conditions can use it."""

RETRY_TOPIC_PROPERTY = "RETRY_TOPIC"
"""Property with the topic to which a message of a retry topic was first sent."""


def matches(
    subscription: ParsedSubscription | None, tags_code: int | None, tags: str | None, properties: Properties | None
) -> bool:
    """Return whether a message matches a subscription, as far as the message is known. It never raises an error.

    Args:
        subscription: None matches every message.
        tags_code: code of the message's tags; only the low 32 bits count.  None: not known, matches any tag.
        tags: the tags themselves, which decide between equal codes; None: not known, "": the message has no tags.
        properties: properties of the message; None: not known, matches any condition.
    """
    if subscription is None:
        return True
    if not matches_code(subscription, tags_code) or not _has_the_tag(subscription, tags):
        return False
    if properties is None or subscription.condition is None:
        return True
    if tags and TAGS_PROPERTY not in properties:
        properties = {**properties, TAGS_PROPERTY: tags}
    return matches_properties(subscription, properties)


def matches_code(subscription: ParsedSubscription | None, tags_code: int | None) -> bool:
    """Return the result of `ExpressionMessageFilter.isMatchedByConsumeQueue` without bit maps (the default).

    `ExpressionForRetryMessageFilter` inherits that method.
    """
    return (
        subscription is None
        or not is_tag_type(subscription.expression_type)
        or matches_code_of_any_type(subscription, tags_code)
    )


def matches_code_of_any_type(subscription: ParsedSubscription | None, tags_code: int | None) -> bool:
    """Return the result of `DefaultMessageFilter.isMatchedByConsumeQueue`, which treats every expression as tags."""
    return (
        tags_code is None
        or subscription is None
        or subscription.class_filter_mode
        or subscription.expression == ALL
        or low_32_bits(tags_code) in subscription.codes
    )


def matches_properties(subscription: ParsedSubscription | None, properties: Properties) -> bool:
    """Return the result of `ExpressionMessageFilter.isMatchedByCommitLog`; without a condition all messages match."""
    return (
        subscription is None
        or subscription.class_filter_mode
        or subscription.condition is None
        or sql92.holds(subscription.condition, properties)
    )


def matches_properties_of_retry(
    subscription: ParsedSubscription | None,
    properties: Properties | None,
    originals: Mapping[str, ParsedSubscription],
) -> bool:
    """Return the result of `ExpressionForRetryMessageFilter.isMatchedByCommitLog` for a retry topic.

    Args:
        subscription: subscription of the group to its retry topic.
        properties: properties of the message; None: not known, matches.
        originals: topic -> subscription of the group to it.  The subscription to the topic to which the message was
            first sent decides; without one the message matches.
    """
    if subscription is None or subscription.class_filter_mode or is_tag_type(subscription.expression_type):
        return True
    if properties is None:
        return True
    return matches_properties(originals.get(properties.get(RETRY_TOPIC_PROPERTY, "")), properties)


def _has_the_tag(subscription: ParsedSubscription, tags: str | None) -> bool:
    """Return whether the exact tag matches, as `PullAPIWrapper` checks it; "Aa" and "BB" have equal codes."""
    return (
        tags is None
        or subscription.class_filter_mode
        or subscription.expression == ALL
        or not is_tag_type(subscription.expression_type)
        or tags in subscription.tags
    )
