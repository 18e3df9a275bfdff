"""Queries about the offsets of partitions, while a broker has no leader for them."""

from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from wakeroll.partition_offsets import ends_of

AT = TopicPartition("wakeroll.inbox", 3)


class Consumer:
    """Answers with these errors first, and then with offsets."""

    def __init__(self, *codes: int) -> None:
        self._codes = list(codes)

    def get_watermark_offsets(self, _at: TopicPartition, _timeout: float) -> tuple[int, int]:
        if self._codes:
            raise KafkaException(KafkaError(self._codes.pop(0)))
        return 2, 7


@pytest.mark.parametrize(
    "code", [KafkaError.LEADER_NOT_AVAILABLE, KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError._UNKNOWN_PARTITION]
)
def test_a_partition_without_a_leader_is_asked_again(code):
    """A new topic has none for a moment, and a broker that was just resumed reports none, or no partition at all."""
    assert ends_of(cast("Any", Consumer(code, code)), AT, timeout=60) == (2, 7)


def test_another_error_is_not_repeated():
    with pytest.raises(KafkaException):
        ends_of(cast("Any", Consumer(KafkaError._TIMED_OUT)), AT, timeout=60)
