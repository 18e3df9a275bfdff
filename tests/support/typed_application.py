"""An application that uses the public API: mypy and pyright accept what is right, and find each mistake that is marked.

Nobody runs it. An ignored error that a checker does not find is an error too.
"""

import asyncio
import logging
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from confluent_kafka import KafkaError, Message

from wakeroll import Admin, AsyncConsumer, Consumer, DeadLetter, DeadLetters, EpochMs, Producer, Queue, Retry, Sql92
from wakeroll import origin_of as first_delivery_of


def handle(messages: list[Message]) -> Sequence[Retry | DeadLetter] | None:
    late = [message for message in messages if first_delivery_of(message).attempt == 1]
    return [Retry(level=2, messages=late), DeadLetter(messages[:1], "no")]


async def handle_later(messages: list[Message]) -> Retry | None:
    await asyncio.sleep(0)
    return None if messages else Retry()


def where(consumer: Consumer, queues: list[Queue]) -> dict[tuple[str, int], int]:
    return {(queue.topic, queue.queue_id): consumer.position(queue) for queue in queues}


async def where_to(consumer: AsyncConsumer, queues: list[Queue]) -> dict[Queue, EpochMs]:
    await consumer.seek(queues[0], EpochMs(5))
    return dict.fromkeys(queues, EpochMs(7))


def lose(consumer: Consumer, queues: list[Queue]) -> None:
    print(consumer.client_id, queues)


def note(error: KafkaError | None, message: Message) -> None:
    print(error, message.offset())


def consume() -> None:
    topics = {"orders": Sql92("amount > 1")}
    settings: dict[str, Callable[..., object] | logging.Logger | int] = {
        "error_cb": print,
        "logger": logging.getLogger("kafka"),
        "fetch.min.bytes": 1,
    }
    with Consumer("billing", topics, "localhost:9092", kafka_config=settings, on_assigned=where, on_lost=lose) as one:
        one.subscribe({re.compile("orders-.*"): "paid"})
        one.subscribe({re.compile("orders-.*"): "paid", "returns": "*"})
        one.run(handle, workers=4)
        one.run(traced_or_not, handle_timeout=3)
        for message in one:
            stored = {("orders", 1): (message.offset() or 0, "batch 1")}
            one.commit(offsets=stored)
        one.seek(("orders", 0), datetime(2026, 1, 1, tzinfo=UTC))
        print(one.offsets_for_times({Queue("orders", "", 0): 5}), one.fetch(("orders", 0), 3).next_offset)


def traced_or_not(messages: list[Message]) -> None:
    print(messages)


async def consume_async() -> None:
    with Producer("localhost:9092") as producer:
        print((await producer.send_and_wait("orders", b"1", properties={"paid": True})).offset())
    async with AsyncConsumer("billing", ["orders"], ["localhost:9092"], on_assigned=where_to) as consumer:
        await consumer.run(handle_later)
        async for message in consumer:
            print(message.value())


def administrate() -> None:
    with Producer("localhost:9092") as producer:
        producer.send("orders", b"1", tags="paid", properties={"region": "EU", "amount": 7}, on_delivery=note)
        producer.send("orders", b"2", headers={"trace": b"7"}, timestamp=datetime(2026, 1, 1, tzinfo=UTC))
    with Admin("localhost:9092") as admin:
        print(admin.plan_reset("billing", "first").rows)
    with DeadLetters("billing", "localhost:9092") as letters:
        print([letter.number for letter in letters.open()])


def count(messages: list[Message]) -> int:
    return len(messages)


async def name(_messages: list[Message]) -> str:
    return ""


async def mistake(one: Consumer, other: AsyncConsumer, producer: Producer) -> None:
    Consumer("billing", ["orders"], "localhost:9092", consume_form="first")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    AsyncConsumer("billing", ["orders"], "localhost:9092", consume_form="first")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    Consumer("billing", ["orders"], "localhost:9092", consume_from="frist")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Consumer("billing", ["orders"], "localhost:9092", kafka_config={"error_cb": object()})  # type: ignore[dict-item]  # pyright: ignore[reportArgumentType]
    Consumer("billing", ["orders"], "localhost:9092", on_assigned=where_to)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    one.run(count)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    one.run(handle, wrokers=3)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await other.run(name)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await other.run(handle_later, wrokers=3)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    one.commit(offsets={"orders": 3})  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Retry(levle=1)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    producer.send("orders", 1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
