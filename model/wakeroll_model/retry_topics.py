"""The retry topic and the dead letter topic of a group, and the delay levels, by which a message is retried."""

from bisect import bisect

from wakeroll_model.queue import GroupId

DELAYS_S = (1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1_200, 1_800, 3_600, 7_200)
"""Delay of each level, from level 1 (s); RocketMQ's `messageDelayLevel`. Queue `level - 1` of a retry topic has the
messages of that level. All messages of a queue wait equally long, so they are due in the order of their offsets."""
FIRST_LEVEL = 3
"""Level of the first retry; each further retry has the next one, as with RocketMQ's sendMessageBack."""
MAX_RETRIES = 16
"""Maximum number of retries of a message before it becomes a dead letter; RocketMQ's `maxReconsumeTimes`."""
MAX_DELAY_S = 7 * 86_400
"""Longest delay that an application may choose (s): the default retention of a retry topic is 30 days."""

_ROCKETMQ_PREFIX = "%RETRY%"


def retry_topic_of(group_id: GroupId) -> str:
    """Return the name of the group's retry topic."""
    return f"retry.{group_id}"


def dead_letter_topic_of(group_id: GroupId) -> str:
    """Return the name of the group's dead letter topic."""
    return f"dlq.{group_id}"


def is_retry_topic(topic: str, group_id: GroupId) -> bool:
    """Return whether this topic is the group's retry topic, by wakeroll's name or by RocketMQ's."""
    return topic == retry_topic_of(group_id) or topic.startswith(_ROCKETMQ_PREFIX)


def has_failed_messages(topic: str) -> bool:
    """Return whether this is a retry topic or a dead letter topic, of any group."""
    return topic.startswith((retry_topic_of(""), dead_letter_topic_of("")))


def level_after(attempt: int) -> int:
    """Return the delay level after a failed attempt, counted from 1."""
    return min(FIRST_LEVEL + attempt - 1, len(DELAYS_S))


def level_within(delay_s: int) -> int:
    """Return the longest level that is not longer than a delay of at least a second.

    A message with a longer delay is stored in the queue of this level first, and in that of a shorter one afterwards:
    within a queue all messages wait equally long.

    >>> level_within(45), DELAYS_S[3], level_within(15)
    (4, 30, 3)
    """
    return bisect(DELAYS_S, delay_s)


def delay_ms_of(queue_id: int) -> int:
    """Return how long the messages of this queue of a retry topic wait (ms)."""
    return DELAYS_S[min(queue_id, len(DELAYS_S) - 1)] * 1_000
