"""FastStream's test broker for `WakerollBroker`: the application runs on a broker in memory.

>>> from wakeroll.testing.faststream_broker import TestWakerollBroker  # doctest: +SKIP
>>> async with TestWakerollBroker(broker):  # doctest: +SKIP
...     await broker.publish(Order(number=1), "orders")
...     await handle.wait_call(timeout=3)
...     handle.mock.assert_called_once_with({"number": 1})
"""

import asyncio
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, cast
from unittest import mock

from confluent_kafka import Message
from faststream.confluent import KafkaBroker, TestKafkaBroker
from faststream.confluent.helpers import AsyncConfluentProducer
from faststream.confluent.publisher.usecase import BatchPublisher

from wakeroll.faststream import WakerollBroker
from wakeroll.producer import Producer
from wakeroll.testing.memory_broker import MemoryBroker

__all__ = ["TestWakerollBroker"]


class TestWakerollBroker(TestKafkaBroker[Any], broker=WakerollBroker):
    """Runs brokers on a `MemoryBroker`: `publish` stores messages in it, and subscribers are real members of groups.

    So a test sees what `TestKafkaBroker` does not have: groups, hand-overs, commits, and messages that come again. The
    handlers and publishers have FastStream's mocks. As Kafka would, a subscriber receives a message some time after
    `publish` has returned: await ``wait_call`` of its handler. Subscribers read from the first message on.
    """

    __test__ = False

    def __init__(self, *brokers: WakerollBroker, connect_only: bool | None = None) -> None:
        """Prepare; ``async with`` starts the brokers, unless `connect_only` is set, and returns them."""
        super().__init__(*brokers, with_real=True, connect_only=connect_only)
        self.memory = MemoryBroker()
        """The broker in memory, while ``async with`` lasts."""
        self._undo = ExitStack()

    async def __aenter__(self) -> Any:
        """Start the brokers."""
        with ExitStack() as undo:
            undo.callback(self.memory.close)
            for broker in self.brokers:
                undo.enter_context(self._on_memory(broker))
            started = await super().__aenter__()
            self._undo = undo.pop_all()
        return started

    async def __aexit__(self, *problem: Any) -> None:
        """Stop the brokers."""
        with self._undo:
            await super().__aexit__(*problem)

    def create_publisher_fake_subscriber(self, broker: KafkaBroker, publisher: Any) -> tuple[Any, bool]:
        """Return a subscriber of a publisher's topic, and whether it is the application's; FastStream calls it."""
        subscribers = (one for each in self.brokers for one in each.subscribers)
        for one in subscribers:
            if publisher.topic in cast(Any, one).topic_names:
                return one, True
        is_batch = isinstance(publisher, BatchPublisher)
        group_id = f"test.{publisher.topic}"
        return broker.subscriber(publisher.topic, group_id=group_id, batch=is_batch, persistent=False), False

    def _on_memory(self, broker: KafkaBroker) -> Any:
        """Let a broker connect to the one in memory; return what ends that."""
        assert isinstance(broker, WakerollBroker), "FastStream checks that"
        config = broker.config.broker_config

        async def connect() -> Any:
            topics = [name for one in broker.subscribers for name in cast(Any, one).topic_names]
            for topic in dict.fromkeys([*topics, *(cast(Any, one).topic for one in broker.publishers)]):
                self._create(topic)
            producer = _MemoryProducer(self.memory.bootstrap, self._create)
            config.producer.connect(producer, serializer=config.fd_config._serializer, codec=config.broker_codec)
            return config.builder

        settings = {**broker._consumer_settings, "consume_from": "first"}
        return mock.patch.multiple(
            broker, _bootstrap=self.memory.bootstrap, _consumer_settings=settings, _connect=connect
        )

    def _create(self, topic: str) -> None:
        """Create a topic, unless it exists."""
        self.memory._log.create(topic, 1)


class _MemoryProducer(AsyncConfluentProducer):
    """FastStream's producer, which sends by wakeroll's."""

    def __init__(self, bootstrap: str, create: Callable[[str], None]) -> None:
        self._producer = Producer(bootstrap)
        self._create = create

    async def stop(self) -> None:
        """Send what was not sent."""
        self._producer.close()

    async def flush(self) -> None:
        """Do nothing: `send` waits until a message is stored."""

    async def ping(self, timeout: float | None = 5.0) -> bool:  # noqa: ARG002 - FastStream's signature
        """Return that the broker is there."""
        return True

    async def send(
        self,
        topic: str,
        value: bytes | str | None = None,
        key: bytes | str | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: list[tuple[str, str | bytes]] | None = None,
        no_confirm: bool = False,
    ) -> "asyncio.Future[Message | None] | Message | None":
        """Store a message, and return it, or a future of it with `no_confirm`."""
        self._create(topic)
        pairs = [(name, one.encode() if isinstance(one, str) else one) for name, one in headers or ()]
        sent = asyncio.ensure_future(
            self._producer.send_and_wait(
                topic, value, key=key, partition=partition, headers=pairs, timestamp=timestamp_ms
            )
        )
        return cast("asyncio.Future[Message | None]", sent) if no_confirm else await sent
