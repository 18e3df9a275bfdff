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
Slices = Annotated[
    int,
    Meta(
        ge=1,
        le=64,
        description="number of slices that the partition is cut into, a power of two; 1 (or absent) if it is not cut",
    ),
]
Slice = Annotated[int, Meta(ge=0, le=63, description="number of the slice, from 0; below `slices`")]
SliceName = Annotated[str, Meta(pattern=r"\A([0-9]|[1-5][0-9]|6[0-3])/(2|4|8|16|32|64)\Z")]
SliceText = Annotated[
    SliceName | None,
    Meta(description="slice of the partition: 5/8 is slice 5 (from 0) of 8; null if the partition is not cut"),
]
"""A slice in the column `slice` of the tables, beside the number of its queue."""
Room = Annotated[str, Meta(max_length=255, description="rack or machine room; empty if not known")]


class Queue(Struct, frozen=True, order=True, omit_defaults=True):
    """A queue: for Kafka a partition of a topic, for RocketMQ a queue of a topic on a broker; or a slice of one.

    Queues sort as RocketMQ's `MessageQueue.compareTo` does: by topic, broker, then number. Slices follow their queue.
    """

    topic: TopicName
    broker: BrokerName
    queue_id: QueueId
    slices: Slices = 1
    slice: Slice = 0

    @property
    def numbers(self) -> tuple[int, int, int]:
        """The number of the queue, the number of its slices, and that of the slice."""
        return self.queue_id, self.slices, self.slice

    @property
    def whole(self) -> "Queue":
        """The queue that this is a slice of; the queue itself if it is not cut."""
        return self if self.slices == 1 else Queue(self.topic, self.broker, self.queue_id)

    @property
    def slice_text(self) -> str | None:
        """The slice as text for the column `slice`, such as ``5/8``; None if the queue is not cut."""
        return text_of_slice(self.slice, self.slices)

    @classmethod
    def of_columns(cls, topic: str, broker: str, queue_id: int, slice_text: str | None) -> "Queue":
        """Return the queue of a row from its columns `topic`, `broker`, `queue_id` and `slice`.

        >>> Queue.of_columns("orders", "", 3, "5/8"), Queue.of_columns("orders", "", 3, None)
        (Queue(orders-3/5of8), Queue(orders-3))
        """
        if not slice_text:
            return cls(topic, broker, queue_id)
        number, _, slices = slice_text.partition("/")
        return cls(topic, broker, queue_id, int(slices), int(number))

    @property
    def key(self) -> str:
        """The key of the queue's records: ``topic@queue_id``, or ``topic@broker@queue_id`` with a broker.

        A slice has the key of the whole queue: arrivals, pulls and wakes are about whole queues.
        """
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
        """Return the name for people: ``orders-3``, ``orders@broker-a-3``, or ``orders-3/5of8`` of a slice."""
        name = f"{self.topic}@{self.broker}-{self.queue_id}" if self.broker else f"{self.topic}-{self.queue_id}"
        return name if self.slices == 1 else f"{name}/{self.slice}of{self.slices}"


def text_of_slice(number: int, slices: int) -> str | None:
    """Return a slice as text for the column `slice`, such as ``5/8``; None if the queue is not cut."""
    return None if slices == 1 else f"{number}/{slices}"


def slice_sql(queue: str) -> str:
    """Return the SQL of Spark and DuckDB for `text_of_slice` of a structure with the fields of a `Queue`.

    The JSON of a decision omits them in a queue that is not cut.
    """
    return f"case when {queue}.slices > 1 then concat(coalesce({queue}.slice, 0), '/', {queue}.slices) end"
