"""Whether a message matches a subscription: what RocketMQ's broker answers, then its client.

The broker compares codes, from its queue of offsets, and evaluates conditions on the properties of the message itself;
the client, which has the tags, drops what only shares a code.  `matches` does all of it.
"""

from collections.abc import Mapping

from model.filters import sql92
from model.filters.subscription import ParsedSubscription, is_tag_type
from model.filters.tags import ALL, low_32_bits

Properties = Mapping[str, str]

TAGS_PROPERTY = "TAGS"
"""Where RocketMQ keeps a message's tags: in its properties, so that a condition can ask for them."""

RETRY_TOPIC_PROPERTY = "RETRY_TOPIC"
"""Which topic a message of a retry topic was first sent to."""


def matches(
    subscription: ParsedSubscription | None, tags_code: int | None, tags: str | None, properties: Properties | None
) -> bool:
    """Whether a message matches a subscription, as far as it is known.  Never raises.

    Args:
        subscription: None wants everything.
        tags_code: the code of the message's tags; only its low 32 bits count.  None = not known, matches any tag.
        tags: the tags themselves, which settle what the code leaves open; None = not known, "" = it has none.
        properties: the message's own; None = not known, matches any condition.
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
    """Answer as `ExpressionMessageFilter.isMatchedByConsumeQueue` does without bit maps, its default.

    `ExpressionForRetryMessageFilter` takes it over as it is.
    """
    return (
        subscription is None
        or not is_tag_type(subscription.expression_type)
        or matches_code_of_any_type(subscription, tags_code)
    )


def matches_code_of_any_type(subscription: ParsedSubscription | None, tags_code: int | None) -> bool:
    """Answer as `DefaultMessageFilter.isMatchedByConsumeQueue` does: it takes every expression for tags."""
    return (
        tags_code is None
        or subscription is None
        or subscription.class_filter_mode
        or subscription.expression == ALL
        or low_32_bits(tags_code) in subscription.codes
    )


def matches_properties(subscription: ParsedSubscription | None, properties: Properties) -> bool:
    """Answer as `ExpressionMessageFilter.isMatchedByCommitLog` does; a type without a condition matches all."""
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
    """Answer as `ExpressionForRetryMessageFilter.isMatchedByCommitLog` does for a retry topic.

    Args:
        subscription: the group's, to its retry topic.
        properties: the message's own; None = not known, matches.
        originals: topic -> the group's subscription to it.  The one of the topic that the message was first sent to
            decides; without it the message matches.
    """
    if subscription is None or subscription.class_filter_mode or is_tag_type(subscription.expression_type):
        return True
    if properties is None:
        return True
    return matches_properties(originals.get(properties.get(RETRY_TOPIC_PROPERTY, "")), properties)


def _has_the_tag(subscription: ParsedSubscription, tags: str | None) -> bool:
    """Whether the exact tag is wanted, as `PullAPIWrapper` asks on the client; "Aa" and "BB" have the same code."""
    return (
        tags is None
        or subscription.class_filter_mode
        or subscription.expression == ALL
        or not is_tag_type(subscription.expression_type)
        or tags in subscription.tags
    )
