"""Queues, and the names of groups, clients and topics."""

from typing import Annotated

from msgspec import Meta, Struct

GroupId = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9._-]{1,255}\Z", description="name of the consumer group")]
ClientId = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9._@#:-]{1,255}\Z", description="name of a member of the group")]
InstanceId = Annotated[
    str, Meta(pattern=r"\A[A-Za-z0-9._@#:-]{1,64}\Z", description="identifies one instance of a client; never reused")
]
# Kafka allows [A-Za-z0-9._-]; RocketMQ also "%" (its retry topics) and "|".
TopicName = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9._%|-]{1,249}\Z", description="name of the topic")]
# Printable ASCII, so that Python's order of strings is Java's.
BrokerName = Annotated[str, Meta(pattern=r"\A[ -~]{0,255}\Z", description="broker of a queue; empty for Kafka")]
QueueId = Annotated[int, Meta(ge=0, le=2**31 - 1, description="number of the queue in its topic, from 0")]
Room = Annotated[str, Meta(max_length=255, description="rack or machine room; empty if not known")]


class Queue(Struct, frozen=True, order=True):
    """A queue: for Kafka a partition of a topic, for RocketMQ a queue of a topic on a broker.

    Queues sort as RocketMQ's `MessageQueue.compareTo` does: by topic, broker, then number.
    """

    topic: TopicName
    broker: BrokerName
    queue_id: QueueId

    @property
    def key(self) -> str:
        """The key of the queue's records: ``topic@queue_id``, or ``topic@broker@queue_id`` with a broker."""
        return "@".join(part for part in (self.topic, self.broker, str(self.queue_id)) if part)

    @classmethod
    def of_key(cls, key: str) -> "Queue":
        """Return the queue with this key."""
        topic, _, rest = key.partition("@")
        broker, _, queue_id = rest.rpartition("@")
        return cls(topic, broker, int(queue_id))

    def __repr__(self) -> str:
        """Return a short name: ``Queue(orders-3)``."""
        return f"Queue({self})"

    def __str__(self) -> str:
        """Return the name for people: ``orders-3``, or ``orders@broker-a-3``."""
        return f"{self.topic}@{self.broker}-{self.queue_id}" if self.broker else f"{self.topic}-{self.queue_id}"
