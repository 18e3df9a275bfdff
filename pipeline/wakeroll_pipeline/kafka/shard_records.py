"""Records for whole shards, such as a new feature level: one for each control partition, signed by an operator."""

from collections.abc import Iterable

import msgspec
from confluent_kafka import KafkaError, KafkaException, Message

from wakeroll.connection import Connection
from wakeroll.errors import NotReachable
from wakeroll.keys import new_signer
from wakeroll_model.events import KeyChange, Level
from wakeroll_model.partitioner import ControlPartition
from wakeroll_model.signing import Key
from wakeroll_pipeline.kafka.topic_admin import PATIENCE_S, Cluster


def append_to_shards(
    connection: Connection,
    key: Key,
    event: Level | KeyChange,
    places: Iterable[ControlPartition],
    patience_s: float = PATIENCE_S,
) -> dict[ControlPartition, int]:
    """Append the event to control partitions.

    Args:
        connection: the brokers.
        key: the operator key that signs.
        event: the event.
        places: the partitions.
        patience_s: how long to wait for each answer of the brokers, in seconds.

    Returns:
        Partition -> offset of the record: it takes effect from there on.

    Raises:
        NotReachable: a partition did not acknowledge its record in time; others may have theirs. The command may be
            repeated.
    """
    signer = new_signer(key)
    ends = {place: end for place, (_, end) in Cluster(connection, patience_s=patience_s).all_offsets(places).items()}
    value = msgspec.json.encode(event)
    offsets: dict[ControlPartition, int] = {}
    failures: dict[ControlPartition, str] = dict.fromkeys(ends, "no acknowledgement")

    def delivered(error: KafkaError | None, message: Message) -> None:
        topic, partition, offset = message.topic(), message.partition(), message.offset()
        if topic is None or partition is None:
            return
        if error is not None:
            failures[topic, partition] = error.str()
        elif offset is not None:
            offsets[topic, partition] = offset

    producer = connection.producer(
        **{"message.timeout.ms": max(round(patience_s * 1_000), 1), "error_cb": lambda _: None, "log_level": 0}
    )
    for (topic, partition), end in ends.items():
        try:
            signed = signer.sign(topic, partition, None, value, end)
            producer.produce(topic, signed, partition=partition, on_delivery=delivered)
        except KafkaException as error:
            failures[topic, partition] = error.args[0].str()
    producer.flush(patience_s + 1)  # the messages time out within this time
    if missing := sorted(failures.keys() - offsets.keys()):
        topic, partition = missing[0]
        raise NotReachable(
            f"{topic}-{partition} did not acknowledge the record within {patience_s:g} s "
            f"({failures[topic, partition]}); {len(offsets)} of {len(ends)} partitions have it; repeat the command"
        )
    return offsets
