"""The next message of a queue, which an operator may want to skip."""

import time
from contextlib import closing

from confluent_kafka import KafkaError, Message, TopicPartition

from wakeroll.connection import Connection
from wakeroll.epoch_ms import EpochMs
from wakeroll.errors import AccessDenied, NotReachable
from wakeroll_model.queue import Queue

_SLICE_S = 0.5
_LONGEST_KEY = 64


def next_message(connection: Connection, queue: Queue, offset: int, timeout: float) -> Message | None:
    """Return the first message of a queue at or after an offset that a `read_committed` consumer receives.

    It waits at most `timeout` seconds for Kafka's answer.

    Returns:
        The message; None if the queue has none at present.

    Raises:
        AccessDenied: the principal may not read the topic.
        NotReachable: Kafka does not answer in time.
    """
    deadline = time.monotonic() + timeout
    with closing(connection.operators_consumer(**{"enable.partition.eof": True})) as consumer:
        consumer.assign([TopicPartition(queue.topic, queue.queue_id, offset)])
        while time.monotonic() < deadline:
            message = consumer.poll(_SLICE_S)
            if message is None:
                continue
            error = message.error()
            if error is None:
                return message
            if error.code() == KafkaError._PARTITION_EOF:
                return None
            if error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                raise AccessDenied(f"cannot read {queue} ({error.str()}), which is needed to know what is skipped")
    raise NotReachable(f"no Kafka broker returned the next message of {queue} within {timeout:g} s")


def in_short(message: Message) -> str:
    """Describe a message in a sentence: its offset, key, size and time."""
    key = message.key()
    named = "no key" if key is None else f"the key {bytes(key[:_LONGEST_KEY]).decode(errors='backslashreplace')!r}"
    _, at_ms = message.timestamp()
    size = len(message.value() or b"")
    return f"the message {message.offset()} has {named} and {size} bytes, and is of {EpochMs(max(at_ms, 0))}"
