"""Where a message comes from: its headers count in the topics of failed messages only."""

import pytest
from confluent_kafka import Message

from wakeroll.dead_letters import MARK, _mark_of
from wakeroll.origin import headers_with, origin_of


def message(topic: str, headers: list[tuple[str, bytes | None]]) -> Message:
    return Message(topic=topic, partition=4, offset=9, value=b"v", headers=headers)


FORGED: list[tuple[str, bytes | None]] = [
    ("wakeroll-topic", b"wakeroll.groups"),
    ("wakeroll-partition", b"0"),
    ("wakeroll-offset", b"57"),
    ("wakeroll-attempt", b"17"),
]


@pytest.mark.parametrize("topic", ["retry.billing", "dlq.billing"])
def test_a_failed_message_has_its_origin_in_its_headers(topic):
    origin = origin_of(message(topic, FORGED))

    assert (origin.topic, origin.partition, origin.offset, origin.attempt) == ("wakeroll.groups", 0, 57, 17)


def test_headers_of_a_message_that_was_sent_on_are_not_its_origin():
    """Or `dlq resend --to-origin` would write where a producer wants, with the rights of the operator.

    And messages that were sent on with the headers of one message would be taken for one, at its attempt.
    """
    origin = origin_of(message("orders", FORGED))

    assert (origin.topic, origin.partition, origin.offset, origin.attempt) == ("orders", 4, 9, 1)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("wakeroll-attempt", b"-1"),
        ("wakeroll-attempt", b"1" + 30 * b"0"),
        ("wakeroll-attempt", "٣".encode()),
        ("wakeroll-attempt", b"\xff"),
        ("wakeroll-attempt", None),
        ("wakeroll-offset", b"1" + 4_000 * b"0"),
        ("wakeroll-partition", b" 1"),
        ("wakeroll-topic", b"../x y"),
    ],
)
def test_headers_that_name_no_valid_origin_do_not_count(name, value):
    origin = origin_of(message("retry.billing", [*FORGED, (name, value)]))

    assert (origin.topic, origin.partition, origin.offset, origin.attempt) == ("retry.billing", 4, 9, 1)


def test_a_dead_letter_with_a_header_like_a_mark_is_a_letter():
    """Otherwise a producer could hide its message, or settle the letters of others, which are then deleted."""
    value = b'{"numbers": [[0, 1000]], "how": "dropped", "by": "nobody"}'
    failed = Message(topic="orders", partition=0, offset=1, value=value, headers=[(MARK, b"1")])
    letter = Message(topic="dlq.billing", value=value, headers=headers_with(failed, origin_of(failed)))

    assert _mark_of(letter) is None
    assert _mark_of(Message(topic="dlq.billing", value=value, headers=[(MARK, b"1")])) is not None
