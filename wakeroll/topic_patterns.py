"""The topics that a pattern may match."""

from wakeroll.connection import Topics, is_legal
from wakeroll_model.retry_topics import has_failed_messages

_ROCKETMQ = ("%RETRY%", "%DLQ%")
"""Beginnings of RocketMQ's names of retry topics and of topics of dead letters."""


def may_match(topic: str, names: Topics) -> bool:
    """Return whether a pattern may match a topic: none matches internal topics, nor those of failed messages.

    Internal are the topics of the control plane, and those that begin with ``__``, as Kafka's own do.
    """
    is_internal = topic.startswith(("__", f"{names.prefix}.", *_ROCKETMQ))
    return is_legal(topic) and not is_internal and not has_failed_messages(topic)
