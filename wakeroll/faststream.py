"""A FastStream broker whose subscribers are members of wakeroll's groups. Optional: install the extra ``faststream``.

FastStream's base classes of brokers are internal (``faststream._internal``). So this is its broker for confluent-kafka
with another consumer, and everything else, such as decoding, injection and AsyncAPI, is FastStream's.

>>> from wakeroll.faststream import WakerollBroker  # doctest: +SKIP
>>> broker = WakerollBroker("localhost:9092")  # doctest: +SKIP
>>> @broker.subscriber("orders", group_id="billing")  # doctest: +SKIP
... async def handle(order: Order) -> None: ...
"""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, cast

from confluent_kafka import Message
from faststream.confluent import KafkaBroker, Topic, TopicPartition

from wakeroll.async_consumer import AsyncConsumer
from wakeroll.errors import InvalidUsage

__all__ = ["WakerollBroker"]

_USED = frozenset({"group_id", "client_id", "partitions", "auto_offset_reset", "enable_auto_commit"})
"""Arguments of a subscriber that have a meaning here."""
_PLACES = {"earliest": "first", "latest": "last"}
_MOST = 10
"""Maximum number of messages in a batch if the subscriber has no `max_records`, as in FastStream's own broker."""


class WakerollBroker(KafkaBroker):
    """FastStream's broker for Kafka, with subscribers that wakeroll's coordinator assigns queues to.

    A subscriber needs a `group_id`. Its ``auto_offset_reset`` is `consume_from`; other arguments of Kafka's consumer
    are refused, and `consumer` has those of `wakeroll.AsyncConsumer` instead. ``ack_policy`` means what it means in
    FastStream: with ``NACK_ON_ERROR``, a message whose function raises is delivered again.
    """

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        *,
        consumer: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        """Connect to nothing yet: `start`, which FastStream's application calls, connects and joins the groups.

        Args:
            bootstrap: ``host:port[,host:port]`` of the brokers, or a list of such addresses.
            consumer: arguments of `wakeroll.AsyncConsumer` for all subscribers, such as ``{"orderly": True}``.
            settings: of FastStream's ``KafkaBroker``, except for its consumers.
        """
        servers = bootstrap if isinstance(bootstrap, str) else list(bootstrap)
        super().__init__(servers, **settings)
        self._bootstrap = servers
        self._consumer_settings = dict(consumer or {})
        self.config.broker_config.builder = cast(Any, self._member)

    def _member(self, *topics: Topic, **given: Any) -> "_Member":
        """Return the consumer of a subscriber; FastStream calls it when the subscriber starts."""
        if given.get("partitions"):
            names = ", ".join(
                f"{one.topic}-{one.partition}" for one in cast(Sequence[TopicPartition], given["partitions"])
            )
            raise InvalidUsage(f"a subscriber names partitions ({names}); the coordinator assigns them: name topics")
        if not given.get("group_id"):
            raise InvalidUsage(f"the subscriber of {', '.join(one.name for one in topics)} has no group_id")
        defaults = inspect.signature(KafkaBroker.subscriber).parameters
        others = [
            name
            for name, value in given.items()
            if name not in _USED and name in defaults and value not in (None, defaults[name].default)
        ]
        if others:
            raise InvalidUsage(
                f"these arguments of a subscriber have no meaning here: {', '.join(sorted(others))}; the argument "
                "`consumer` of WakerollBroker has those of AsyncConsumer"
            )
        settings = {
            "consume_from": _PLACES[given.get("auto_offset_reset", "latest")],
            "commit_interval": 5.0 if given.get("enable_auto_commit", True) else None,
            **self._consumer_settings,
        }
        return _Member(AsyncConsumer(given["group_id"], [one.name for one in topics], self._bootstrap, **settings))


class _Member:
    """The consumer of a subscriber: the methods that FastStream calls."""

    def __init__(self, consumer: AsyncConsumer) -> None:
        self._consumer = consumer
        self._received: Sequence[Message] = ()
        """The messages of the last call."""

    async def start(self) -> None:
        """Join the group."""
        await self._consumer.__aenter__()

    async def stop(self) -> None:
        """Leave the group; the subscriber has finished its last message."""
        await self._consumer.__aexit__(None, None, None)

    async def getone(self, timeout: float = 0.1) -> Message | None:
        """Return the next message."""
        message = await self._consumer.poll(timeout)
        self._received = () if message is None else (message,)
        return message

    async def getmany(self, timeout: float = 0.1, max_records: int | None = None) -> tuple[Message, ...]:
        """Return the next messages."""
        self._received = messages = tuple(await self._consumer.consume(max_records or _MOST, timeout))
        return messages

    async def commit(self, asynchronous: bool = True) -> None:  # noqa: ARG002 - FastStream's signature
        """Commit what was delivered."""
        await self._consumer.commit()

    async def seek(self, topic: str, partition: int, offset: int) -> None:
        """Deliver a message again, and those after it."""
        place = topic, partition, offset
        named = (one for one in self._received if (one.topic(), one.partition(), one.offset()) == place)
        message = next(named, None)  # of a partition that is cut, only its slice goes back
        await self._consumer.seek((topic, partition) if message is None else self._consumer.queue_of(message), offset)
