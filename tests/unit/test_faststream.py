"""FastStream applications whose subscribers are members of groups: the real framework, on a broker in memory."""

import asyncio
from collections.abc import Callable
from typing import Annotated

import pytest
from confluent_kafka.serialization import MessageField, SerializationContext, StringDeserializer
from faststream import AckPolicy, Depends, FastStream
from faststream.confluent import TestKafkaBroker
from faststream.specification import AsyncAPI
from pydantic import BaseModel

from wakeroll import InvalidUsage
from wakeroll.faststream import WakerollBroker
from wakeroll.testing import MemoryBroker
from wakeroll.testing.faststream_broker import TestWakerollBroker
from wakeroll_model.queue import Queue
from wakeroll_model.slices import slice_of


class Order(BaseModel):
    """A message of the application."""

    number: int
    amount: float = 0.0


@pytest.fixture
def memory():
    with MemoryBroker() as broker:
        broker.create_topic("orders", queues=2)
        for number in range(4):
            broker.send("orders", Order(number=number).model_dump_json())
        yield broker


def run(broker: WakerollBroker, is_done: Callable[[], object]) -> None:
    """Run the application until a condition is true."""

    async def main() -> None:
        await broker.start()
        try:
            async with asyncio.timeout(60):
                while not is_done():
                    await asyncio.sleep(0.01)
        finally:
            await broker.stop()

    asyncio.run(main())


def test_a_subscriber_receives_decoded_messages_with_what_it_depends_on(memory):
    broker = WakerollBroker(memory.bootstrap)
    seen: list[tuple[int, str]] = []

    def rate() -> str:
        return "EUR"

    @broker.subscriber("orders", group_id="billing", auto_offset_reset="earliest")
    async def handle(order: Order, currency: Annotated[str, Depends(rate)]) -> None:
        seen.append((order.number, currency))

    run(broker, lambda: len(seen) == 4)

    assert sorted(seen) == [(number, "EUR") for number in range(4)]
    assert sum(memory.committed("billing").values()) == 4


def test_a_message_that_is_not_acknowledged_comes_again(memory):
    broker = WakerollBroker(memory.bootstrap)
    seen: list[int] = []

    @broker.subscriber("orders", group_id="billing", auto_offset_reset="earliest", ack_policy=AckPolicy.NACK_ON_ERROR)
    async def handle(order: Order) -> None:
        seen.append(order.number)
        if seen.count(2) == 1 and order.number == 2:
            raise ConnectionError("no database")

    run(broker, lambda: set(seen) == {0, 1, 2, 3} and seen.count(2) == 2)

    assert sum(memory.committed("billing").values()) == 4


def test_of_slices_only_that_of_the_message_comes_again(memory):
    """FastStream names the partition; the messages of its other slices were acknowledged."""
    memory.create_topic("payments")
    memory.cut("billing", "payments", 4)
    for number in range(12):
        memory.send("payments", Order(number=number).model_dump_json(), key=f"customer-{number}")
    broker = WakerollBroker(memory.bootstrap)
    seen: list[int] = []

    @broker.subscriber("payments", group_id="billing", auto_offset_reset="earliest", ack_policy=AckPolicy.NACK_ON_ERROR)
    async def handle(order: Order) -> None:
        seen.append(order.number)
        if order.number == 5 and seen.count(5) == 1:
            raise ConnectionError("no database")

    run(broker, lambda: set(seen) == set(range(12)) and seen.count(5) == 2)

    failed = slice_of(b"customer-5", 4)
    others = [number for number in seen if slice_of(f"customer-{number}".encode(), 4) != failed]
    assert len(others) == len(set(others))


def test_a_subscriber_of_batches_receives_lists(memory):
    broker = WakerollBroker(memory.bootstrap)
    seen: list[int] = []

    @broker.subscriber("orders", group_id="billing", auto_offset_reset="earliest", batch=True, max_records=3)
    async def handle(orders: list[Order]) -> None:
        assert len(orders) <= 3
        seen.extend(order.number for order in orders)

    run(broker, lambda: len(seen) == 4)

    assert sorted(seen) == [0, 1, 2, 3]


def test_the_test_broker_and_asyncapi_of_faststream_work():
    broker = WakerollBroker("localhost:9092")
    seen: list[int] = []

    @broker.subscriber("orders", group_id="billing")
    async def handle(order: Order) -> None:
        seen.append(order.number)

    async def main() -> None:
        async with TestKafkaBroker(broker) as tested:
            await tested.publish({"number": 7}, topic="orders")

    asyncio.run(main())
    described = AsyncAPI(broker).to_specification().to_jsonable()
    assert FastStream(broker).broker is broker
    assert seen == [7]
    assert "orders" in str(described["channels"])


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({}, "the subscriber of orders has no group_id"),
        ({"group_id": "billing", "session_timeout_ms": 1}, "have no meaning here: session_timeout_ms"),
        ({"group_id": "a b"}, "group_id is 'a b'"),
    ],
)
def test_what_a_subscriber_cannot_have_is_refused(memory, arguments, sentence):
    broker = WakerollBroker(memory.bootstrap)

    @broker.subscriber("orders", **arguments)
    async def handle(_: Order) -> None: ...

    with pytest.raises(InvalidUsage, match=sentence):
        run(broker, lambda: True)


def test_a_deserializer_of_confluent_kafka_is_a_function_of_the_value(memory):
    """docs/from-confluent-kafka.md; those of the Schema Registry are called in the same way."""
    seen: list[str] = []
    decode = StringDeserializer("utf_8")

    def handle(messages):
        seen.extend(
            decode(message.value(), SerializationContext(message.topic(), MessageField.VALUE)) for message in messages
        )

    memory.join("billing", ["orders"], handle)
    memory.run_until_done()

    assert sorted(seen) == [Order(number=number).model_dump_json() for number in range(4)]


def test_an_application_is_tested_on_a_broker_in_memory():
    """Its subscribers are members, its publishers write, and each handler has FastStream's mock."""
    broker = WakerollBroker("unused:9092", consumer={"commit_interval": 0.1})
    invoices = broker.publisher("invoices")
    seen: list[int] = []

    @broker.subscriber("orders", group_id="billing")
    @invoices
    async def handle(order: Order) -> Order:
        seen.append(order.number)
        return Order(number=order.number + 100)

    @broker.subscriber("letters", group_id="post", batch=True)
    async def post(letters: list[str]) -> None:
        seen.extend(len(one) for one in letters)

    async def main() -> None:
        for _ in range(2):  # each time on another broker in memory
            seen.clear()
            test = TestWakerollBroker(broker)
            async with test as started:
                assert started is broker
                await broker.publish(Order(number=1), "orders", headers={"a": "b"})
                await broker.publish_batch("four", "letter", topic="letters")
                await handle.wait_call(timeout=30)
                await post.wait_call(timeout=30)
                handle.mock.assert_called_once_with({"number": 1, "amount": 0.0})
                async with asyncio.timeout(30):
                    while len(seen) < 3 or test.memory.committed("billing") != {Queue("orders", "", 0): 1}:
                        await asyncio.sleep(0.01)
                invoices.mock.assert_called_once_with({"number": 101, "amount": 0.0})
            assert sorted(seen) == [1, 4, 6]
        assert broker._bootstrap == "unused:9092"

    asyncio.run(main())
