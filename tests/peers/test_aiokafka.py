"""Each call of `aiokafka.AIOKafkaConsumer`, and what a user finds here: docs/from-aiokafka.md has the table."""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from aiokafka import AIOKafkaConsumer
from confluent_kafka import Message

from tests.support.peer_tables import answers, check_table, rows_of
from wakeroll import AsyncConsumer, InvalidUsage, Queue

pytestmark = pytest.mark.e2e

PATIENCE_S = 60.0
EXTRA = ("AIOKafkaConsumer(*topics)", "async for", "async with", "ConsumerRebalanceListener")
"""Rows about what is no method of theirs."""
Scene = Callable[[AsyncConsumer], Awaitable[None]]


@pytest.fixture
def play(coordinator, group_id, topic) -> Callable[..., None]:
    """Run a coroutine with a consumer of the test's topic, in an event loop of its own."""
    plane = coordinator.connection

    def play(scene: Scene, **settings) -> None:
        async def main() -> None:
            arguments = {"consume_from": "first", "commit_interval": None, "prefix": plane.topics.prefix, **settings}
            async with (
                asyncio.timeout(PATIENCE_S),
                AsyncConsumer(group_id, [topic], plane.bootstrap, **arguments) as consumer,
            ):
                await scene(consumer)

        asyncio.run(main())

    return play


async def received(consumer: AsyncConsumer, count: int) -> list[Message]:
    """Poll so many messages."""
    found: list[Message] = []
    while len(found) < count:
        if (message := await consumer.poll(1.0)) is not None:
            found.append(message)
    return found


@answers("getone", "assignment", "position", "async with")
def test_poll_returns_one_message(play, topic):
    async def scene(consumer: AsyncConsumer) -> None:
        messages = await received(consumer, 20)
        assert {message.topic() for message in messages} == {topic}
        assert await consumer.poll(0.1) is None
        assert consumer.assignment() == [Queue(topic, "", 0), Queue(topic, "", 1)]
        assert consumer.position((topic, 1)) == 10

    play(scene)


@answers("getmany")
def test_consume_returns_many(play):
    async def scene(consumer: AsyncConsumer) -> None:
        found: list[Message] = []
        while len(found) < 20:
            some = await consumer.consume(7, 5.0)
            assert len(some) <= 7
            found += some
        assert await consumer.consume(7, 0.1) == []

    play(scene)


@answers("async for")
def test_a_loop_ends_when_the_consumer_is_closed(play):
    async def scene(consumer: AsyncConsumer) -> None:
        count = 0
        async for _ in consumer:
            count += 1
            if count == 20:
                await consumer.close()
        assert count == 20

    play(scene)


@answers("commit", "committed", "last_poll_timestamp")
def test_commit_takes_what_was_received_or_offsets(play, coordinator, topic):
    queue = Queue(topic, "", 0)

    async def scene(consumer: AsyncConsumer) -> None:
        messages = await received(consumer, 20)
        third = next(message for message in messages if (message.partition(), message.offset()) == (0, 3))
        assert await consumer.commit(message=third)
        assert await consumer.committed(queue) == 4
        assert await consumer.commit(offsets={queue: (6, "batch 12")})
        assert await consumer.committed(queue) == 6
        coordinator.produce(topic, 0, 1)
        await received(consumer, 1)
        assert await consumer.commit()
        assert await consumer.committed(queue) == 11
        assert third.timestamp()[1] > 0

    play(scene)


@answers("seek", "seek_to_beginning", "seek_to_end", "seek_to_committed")
def test_seek_reads_on_elsewhere(play, topic):
    queue = Queue(topic, "", 0)

    async def scene(consumer: AsyncConsumer) -> None:
        messages = await received(consumer, 20)
        await consumer.commit(message=next(one for one in messages if (one.partition(), one.offset()) == (0, 3)))
        committed = await consumer.committed(queue)
        assert committed is not None
        for place, offset in ((7, 7), ("first", 0), (committed, 4)):
            await consumer.seek(queue, place)
            [message] = await received(consumer, 1)
            assert (message.partition(), message.offset()) == (0, offset)
        await consumer.seek(queue, "last")
        assert consumer.position(queue) == 10

    play(scene)


@answers("pause", "resume", "paused")
def test_a_queue_that_is_paused_stays_assigned(play, coordinator, topic):
    async def scene(consumer: AsyncConsumer) -> None:
        await received(consumer, 20)
        consumer.pause([(topic, 0)])
        assert consumer.paused() == [Queue(topic, "", 0)]
        for partition in (0, 1):
            coordinator.produce(topic, partition, 1)
        [other] = await received(consumer, 1)
        assert (other.partition(), await consumer.poll(0.5)) == (1, None)
        consumer.resume(consumer.paused())
        [message] = await received(consumer, 1)
        assert (message.partition(), message.offset(), consumer.paused()) == (0, 10, [])

    play(scene)


@answers("beginning_offsets", "end_offsets", "highwater", "offsets_for_times")
def test_offsets_of_kafka_are_those_of_any_queue(play, topic):
    queue = Queue(topic, "", 0)

    async def scene(consumer: AsyncConsumer) -> None:
        assert await consumer.first_offset(queue) == 0
        assert await consumer.end_offset(queue) == 10
        assert await consumer.offsets_for_times({queue: 0}) == {queue: 0}
        assert await consumer.offsets_for_times({queue: 4_000_000_000_000}) == {queue: 10}

    play(scene)


@answers("ConsumerRebalanceListener")
def test_callbacks_are_coroutines(play):
    told: list[tuple[str, int]] = []

    async def assigned(_: AsyncConsumer, queues: list[Queue]) -> dict[Queue, int]:
        await asyncio.sleep(0)
        told.append(("assigned", len(queues)))
        return dict.fromkeys(queues, 9)

    async def revoked(_: AsyncConsumer, queues: list[Queue]) -> None:
        told.append(("revoked", len(queues)))

    async def scene(consumer: AsyncConsumer) -> None:
        assert {message.offset() for message in await received(consumer, 2)} == {9}

    play(scene, on_assigned=assigned, on_revoked=revoked)

    assert sum(count for kind, count in told if kind == "assigned") == 2
    assert sum(count for kind, count in told if kind == "revoked") == 2


@answers("subscribe", "subscription")
def test_topics_change_while_it_reads(play, coordinator, topic):
    other = coordinator.topic(1)

    async def scene(consumer: AsyncConsumer) -> None:
        await received(consumer, 20)
        assert set(consumer.subscription().topics) == {topic}
        await consumer.subscribe([other])
        while [str(queue) for queue in consumer.assignment()] != [f"{other}-0"]:
            await consumer.poll(0.1)
        assert set(consumer.subscription().topics) == {other}

    play(scene)


@answers("start", "stop", "AIOKafkaConsumer(*topics)")
def test_an_object_joins_once_and_says_so(coordinator, group_id, topic):
    plane = coordinator.connection

    @asynccontextmanager
    async def refused(words: str):
        with pytest.raises(InvalidUsage, match=words):
            yield

    async def main() -> None:
        consumer = AsyncConsumer(group_id, [topic], plane.bootstrap, prefix=plane.topics.prefix)
        async with refused("has not joined"):
            await consumer.poll()
        async with consumer:
            pass
        await consumer.close()
        async with refused("is closed"):
            await consumer.poll()
        async with refused("has been used"):
            await consumer.__aenter__()

    asyncio.run(main())


def test_a_cancelled_poll_loses_no_message(play, topic):
    """Their `test_consumer_cancel`: the next call returns it."""

    async def scene(consumer: AsyncConsumer) -> None:
        await received(consumer, 20)
        waiting = asyncio.create_task(consumer.poll(30.0))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await consumer.seek((topic, 0), 5)
        assert [message.offset() for message in await received(consumer, 5)] == [5, 6, 7, 8, 9]

    play(scene)


def test_each_of_their_calls_has_a_row_that_is_shown():
    """A new method of theirs, or a row that no test shows, is found here."""
    theirs = [name for name in dir(AIOKafkaConsumer) if name[0] != "_"]

    check_table(rows_of("from-aiokafka.md", "Call by call"), [*theirs, *EXTRA], sys.modules[__name__])
