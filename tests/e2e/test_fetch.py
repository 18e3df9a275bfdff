"""Long polling on a real broker, with the real machine as its coordinator: what a fetch returns, and when."""

import base64
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack

import msgspec
import pytest
from confluent_kafka import KafkaException, Message, TopicPartition

from tests.support.waiting import wait_until
from wakeroll import (
    Consumer,
    ConsumerFenced,
    Fetched,
    InvalidUsage,
    NotReachable,
    Producer,
    RequestRefused,
    WakerollError,
)
from wakeroll.connection import Connection, Topics
from wakeroll_model import decisions
from wakeroll_model.config import CONTROL_PARTITIONS
from wakeroll_model.decisions import Rejected, Wake
from wakeroll_model.events import Arrival, Cancel, Pull
from wakeroll_model.queue import Queue
from wakeroll_model.replay import encode_decision
from wakeroll_pipeline.kafka.control_topics import ensure_topics

pytestmark = pytest.mark.e2e

PATIENCE_S = 120.0
LONG_S = 600.0
"""A wait that no test sits out: whoever comes back has been woken."""


class Desk:
    """A consumer whose fetches run in threads of their own, and what the coordinator hears of it."""

    def __init__(self, coordinator, consumer: Consumer, threads: ThreadPoolExecutor) -> None:
        self.coordinator = coordinator
        self.consumer = consumer
        self._threads = threads

    def fetch(self, topic: str, offset: int, wait: float = LONG_S, number: int = 0, **more) -> Future[Fetched]:
        """Begin a fetch."""
        return self._threads.submit(self.consumer.fetch, (topic, number), offset, wait, **more)

    def poll(self) -> Message:
        """Return the next message that the group gives to this consumer."""
        message = self.consumer.poll(PATIENCE_S)
        assert message is not None, "nothing came"
        return message

    def pulls(self) -> list[Pull]:
        """Return its pulls so far."""
        return [event for event in tuple(self.coordinator.heard) if isinstance(event, Pull) and self._is_mine(event)]

    def wakes(self) -> list[Wake]:
        """Return the answers so far."""
        return [each for each in tuple(self.coordinator.decided) if isinstance(each, Wake) and self._is_mine(each)]

    def wait_for_pull(self, count: int = 1) -> Pull:
        """Wait until the coordinator has heard so many pulls; return the last one."""
        wait_until(lambda: len(self.pulls()) >= count, f"there are {count} pulls")
        return self.pulls()[-1]

    def _is_mine(self, named: Pull | Wake) -> bool:
        return named.client_id == self.consumer.client_id


@pytest.fixture
def join(coordinator) -> Iterator[Callable[..., Desk]]:
    """Make consumers that are closed after the test, and their waiting fetches with them."""
    with ExitStack() as stack:

        def make(topics: list[str] | dict[str, str], **settings) -> Desk:
            topics_of = coordinator.connection.topics
            settings = {"group_id": f"billing-{uuid.uuid4().hex[:6]}", "prefix": topics_of.prefix, **settings}
            threads = stack.enter_context(ThreadPoolExecutor(4))
            consumer = Consumer(topics=topics, bootstrap=coordinator.connection.bootstrap, **settings)
            stack.callback(consumer.close)
            return Desk(coordinator, consumer, threads)

        yield make


@pytest.fixture
def producer(coordinator) -> Iterator[Producer]:
    """The producer that tells of arrivals."""
    with Producer(coordinator.connection.bootstrap, prefix=coordinator.connection.topics.prefix) as producer:
        yield producer


@pytest.fixture
def one_consumer(coordinator, join) -> tuple[str, Consumer]:
    """A topic with one queue and a consumer of it."""
    topic = coordinator.topic(1)
    return topic, join([topic]).consumer


def append(coordinator, arrival: Arrival) -> None:
    """Tell of an arrival."""
    connection = coordinator.connection
    producer = connection.producer()
    producer.produce(connection.topics.queues, msgspec.json.encode(arrival), key=arrival.queue.key.encode())
    assert producer.flush(PATIENCE_S) == 0


def told_of(coordinator, topic: str) -> list[Arrival]:
    """Return what the coordinator was told of a topic's queues so far."""
    return [event for event in tuple(coordinator.heard) if isinstance(event, Arrival) and event.queue.topic == topic]


def records_in(connection: Connection, topic: str) -> int:
    """Return how many records were ever appended to a control topic; none if it was just made and has no leader."""
    reader = connection.consumer()
    try:
        partitions = [TopicPartition(topic, partition) for partition in range(CONTROL_PARTITIONS)]
        return sum(reader.get_watermark_offsets(partition, PATIENCE_S)[1] for partition in partitions)
    except KafkaException:
        return 0
    finally:
        reader.close()


def offsets(fetched: Fetched) -> list[int | None]:
    return [message.offset() for message in fetched.messages]


def values(fetched: Fetched) -> list[bytes | None]:
    return [message.value() for message in fetched.messages]


# --- what is there ---


def test_what_is_there_is_returned_at_once_and_nobody_is_asked(coordinator, join):
    """From the offset on, no more than wanted; the coordinator is for whoever has to wait."""
    topic = coordinator.topic(2)
    coordinator.produce(topic, 0, 5)
    desk = join([topic])

    some = desk.fetch(topic, 1, max_messages=2).result(PATIENCE_S)
    rest = desk.fetch(topic, some.next_offset).result(PATIENCE_S)

    assert (offsets(some), some.next_offset) == ([1, 2], 3)
    assert (offsets(rest), rest.next_offset) == ([3, 4], 5)
    assert desk.fetch(topic, 5, wait=0).result(PATIENCE_S) == Fetched([], 5)
    assert desk.pulls() == []


def test_a_large_queue_is_fetched_piece_by_piece(coordinator, join):
    """Each piece goes on where the last one ended, with or without what Kafka's client has read ahead."""
    topic = coordinator.topic(1)
    coordinator.produce(topic, 0, 5_000)
    desk = join([topic])
    found: list[int | None] = []

    while len(found) < 5_000:
        piece = desk.fetch(topic, len(found), wait=0, max_messages=700).result(PATIENCE_S)
        assert 1 <= len(piece.messages) <= 700
        found += offsets(piece)
        assert piece.next_offset == len(found)

    assert found == list(range(5_000))


def test_what_was_deleted_is_passed_over(coordinator, join):
    """An old offset is no reason to hang, nor to read everything again."""
    topic = coordinator.topic(1)
    coordinator.produce(topic, 0, 10)
    coordinator._admin.delete_records([TopicPartition(topic, 0, 7)])[TopicPartition(topic, 0, 7)].result(PATIENCE_S)
    desk = join([topic])

    assert offsets(desk.fetch(topic, 0).result(PATIENCE_S)) == [7, 8, 9]


def test_fetching_leaves_polling_and_what_is_committed_alone(coordinator, join):
    """Two ways to read that do not know of each other: a fetch needs no ownership and commits nothing."""
    topic = coordinator.topic(1)
    coordinator.produce(topic, 0, 10)
    owner = join([topic], consume_from="first", client_id=f"{topic}-1")  # strategies assign in the order of names
    other = join([topic], group_id=owner.consumer.group_id, client_id=f"{topic}-2")
    polled = [owner.poll().offset() for _ in range(5)]

    assert offsets(other.fetch(topic, 3).result(PATIENCE_S)) == list(range(3, 10))
    assert offsets(owner.fetch(topic, 0).result(PATIENCE_S)) == list(range(10))
    polled += [owner.poll().offset() for _ in range(5)]

    assert polled == list(range(10))
    other.consumer.close()
    assert coordinator.commits(other.consumer.client_id) == []


# --- waiting ---


def test_a_fetch_that_waits_is_woken_by_a_message(coordinator, join, producer):
    """The coordinator holds the pull; the producer's word of the arrival is what ends it."""
    topic = coordinator.topic(1)
    desk = join([topic])
    waiting = desk.fetch(topic, 0)
    pull = desk.wait_for_pull()
    assert not waiting.done()

    producer.send(topic, b"one", partition=0)
    fetched = waiting.result(PATIENCE_S)

    assert (values(fetched), fetched.next_offset) == ([b"one"], 1)
    assert (pull.queue, pull.from_offset, pull.expression) == (Queue(topic, "", 0), 0, "*")
    assert [(wake.request_id, wake.reason) for wake in desk.wakes()] == [(pull.request_id, "arrival")]
    stored_ms = fetched.messages[0].timestamp()[1]
    assert told_of(coordinator, topic) == [Arrival(queue=pull.queue, next_offset=1, stored_ms=stored_ms)]


def test_a_fetch_of_a_queue_that_nobody_has_pulled_looks_once_more_and_waits(coordinator, join, producer):
    """The coordinator does not know yet whether something came after the first look."""
    topic = coordinator.topic(1, is_pulled=False)
    desk = join([topic])
    waiting = desk.fetch(topic, 0)
    desk.wait_for_pull(2)

    producer.send(topic, b"one", partition=0)

    assert values(waiting.result(PATIENCE_S)) == [b"one"]
    assert [wake.reason for wake in desk.wakes()] == ["unknown", "arrival"]


def test_several_threads_wait_for_a_queue_each(coordinator, join, producer):
    topic = coordinator.topic(3)
    desk = join([topic])
    waiting = [desk.fetch(topic, 0, number=number) for number in range(3)]
    desk.wait_for_pull(3)

    with pytest.raises(InvalidUsage, match=rf"another thread is fetching {topic}-1"):
        desk.consumer.fetch((topic, 1), 0)
    for number in (2, 0, 1):
        producer.send(topic, str(number), partition=number)
        assert values(waiting[number].result(PATIENCE_S)) == [str(number).encode()]

    assert sorted(wake.reason for wake in desk.wakes()) == ["arrival"] * 3


def test_what_the_expression_does_not_want_is_left_out_and_passed_over(coordinator, join, producer):
    """Its sender is not to be asked for, and the next fetch need not look at it again."""
    topic = coordinator.topic(1)
    for tags in ("lost", "paid", ""):
        producer.send(topic, tags, partition=0, tags=tags)
    assert producer.flush(PATIENCE_S)
    desk = join({topic: "paid || refunded"})

    there = desk.fetch(topic, 0).result(PATIENCE_S)
    assert (values(there), there.next_offset) == ([b"paid"], 3)

    waiting = desk.fetch(topic, 2)
    assert desk.wait_for_pull().from_offset == 3
    producer.send(topic, b"lost", partition=0, tags="lost")
    producer.send(topic, b"refunded", partition=0, tags="refunded", properties={"region": "EU"})
    woken = waiting.result(PATIENCE_S)

    assert (values(woken), woken.next_offset) == ([b"refunded"], 5)
    assert woken.messages[0].headers() == [("TAGS", b"refunded"), ("region", b"EU")]
    assert [wake.reason for wake in desk.wakes()] == ["arrival"]


def test_a_message_that_says_nothing_of_itself_wakes_and_the_fetch_goes_on_behind_it(coordinator, join, producer):
    """Others produce too; of their messages the observer knows no tags, and only a look tells."""
    topic = coordinator.topic(1)
    desk = join({topic: "paid"})
    waiting = desk.fetch(topic, 0)
    pull = desk.wait_for_pull()
    coordinator.produce(topic, 0, 1)
    append(coordinator, Arrival(queue=pull.queue, next_offset=1))

    assert desk.wait_for_pull(2).from_offset == 1
    assert not waiting.done()
    producer.send(topic, b"two", partition=0, tags="paid")

    fetched = waiting.result(PATIENCE_S)
    assert (values(fetched), fetched.next_offset) == ([b"two"], 2)


def test_without_a_message_a_fetch_ends_with_its_wait(coordinator, join, producer):
    """Empty, but not where it began if something was there that it did not want."""
    topic = coordinator.topic(2)
    desk = join({topic: "paid"})
    empty, unwanted = desk.fetch(topic, 0, wait=4.0), desk.fetch(topic, 0, wait=4.0, number=1)
    desk.wait_for_pull(2)
    producer.send(topic, b"lost", partition=1, tags="lost")

    assert empty.result(PATIENCE_S) == Fetched([], 0)
    assert unwanted.result(PATIENCE_S) == Fetched([], 1)
    wait_until(lambda: [wake.reason for wake in desk.wakes()] == ["timeout", "timeout"], "both are answered")


def test_without_a_coordinator_a_fetch_ends_by_its_own_deadline(coordinator):
    """Nobody hangs; and what has come meanwhile is found all the same."""
    connection = Connection(coordinator.connection.bootstrap, topics=Topics(f"plane-{uuid.uuid4().hex[:6]}"))
    ensure_topics(connection)
    topic = coordinator.topic(2)

    with (
        Consumer("billing", [topic], connection.bootstrap, prefix=connection.topics.prefix) as consumer,
        ThreadPoolExecutor(2) as threads,
    ):
        # Kafka must have answered once: a wait that is over before that asks for nothing.
        assert consumer.fetch((topic, 1), 0, wait=0) == Fetched([], 0)
        empty = threads.submit(consumer.fetch, (topic, 0), 0, 4.0)
        late = threads.submit(consumer.fetch, Queue(topic, "", 1), 0, 4.0)
        wait_until(lambda: records_in(connection, connection.topics.queues) == 2, "both wait")
        coordinator.produce(topic, 1, 1)

        assert empty.result(PATIENCE_S) == Fetched([], 0)
        assert offsets(late.result(PATIENCE_S)) == [0]


def test_messages_of_an_open_transaction_are_waited_for_not_passed_over(coordinator, join):
    """An arrival may tell of them before they can be read; who went on behind it would never see them."""
    topic = coordinator.topic(1)
    desk = join([topic])
    writer = coordinator.connection.producer(**{"transactional.id": f"t-{uuid.uuid4().hex[:6]}"})
    writer.init_transactions(PATIENCE_S)
    writer.begin_transaction()
    writer.produce(topic, b"one", partition=0)
    assert writer.flush(PATIENCE_S) == 0
    waiting = desk.fetch(topic, 0)
    append(coordinator, Arrival(queue=desk.wait_for_pull().queue, next_offset=1))

    desk.wait_for_pull(2)
    assert not waiting.done()
    writer.commit_transaction(PATIENCE_S)

    assert values(waiting.result(PATIENCE_S)) == [b"one"]
    assert desk.fetch(topic, 1, wait=0).result(PATIENCE_S) == Fetched([], 2)  # behind the transaction's marker


def test_a_queue_that_has_become_shorter_is_read_on_from_its_new_end(coordinator, join):
    """After an unclean election the offset may lie where nothing will be for a long time."""
    topic = coordinator.topic(1)
    coordinator.produce(topic, 0, 2)
    desk = join([topic])
    waiting = desk.fetch(topic, 50)
    queue = desk.wait_for_pull().queue

    def reported() -> bool:
        coordinator.report(Arrival(queue=queue, next_offset=2, observer="o1"))
        return len(desk.pulls()) > 1

    wait_until(reported, "reports are believed that are 2 s apart")
    assert desk.wait_for_pull(2).from_offset == 2
    coordinator.produce(topic, 0, 1)
    coordinator.report(Arrival(queue=queue, next_offset=3, observer="o1"))

    assert offsets(waiting.result(PATIENCE_S)) == [2]


# --- leaving early ---


def test_closing_ends_a_fetch_and_cancels_its_pull(coordinator, join):
    """The coordinator keeps nothing for whoever does not wait any more."""
    topic = coordinator.topic(1)
    desk = join([topic])
    waiting = desk.fetch(topic, 0)
    pull = desk.wait_for_pull()

    desk.consumer.close()

    with pytest.raises(InvalidUsage, match="this Consumer is closed; create a new one"):
        waiting.result(PATIENCE_S)
    wait_until(lambda: [wake.reason for wake in desk.wakes()] == ["cancelled"], "the pull is cancelled")
    assert [event for event in coordinator.heard if isinstance(event, Cancel)][-1].request_id == pull.request_id
    with pytest.raises(InvalidUsage, match="this Consumer is closed"):
        desk.consumer.fetch((topic, 0), 0)


def test_who_is_fenced_hears_of_it_in_a_fetch_too(coordinator, join):
    """It may be the only call that its application makes."""
    topic = coordinator.topic(1)
    desk = join([topic], client_id=f"c-{uuid.uuid4().hex[:6]}")
    waiting = desk.fetch(topic, 0)
    desk.wait_for_pull()
    wait_until(lambda: coordinator.members(desk.consumer.group_id), "it has joined")
    beat = coordinator.beats(desk.consumer.client_id)[-1]
    out = decisions.Fenced(
        shard="test-0.1",
        seq=1,
        group_id=beat.group_id,
        client_id=beat.client_id,
        instance_id=beat.instance_id,
        reason="duplicate",
        by="another",
    )

    coordinator.tell(beat.client_id, encode_decision(out))

    with pytest.raises(ConsumerFenced, match="is a duplicate: another process, instance another"):
        waiting.result(PATIENCE_S)


def test_a_pull_that_is_refused_ends_with_the_reason(coordinator, join):
    """It would otherwise look like a queue without messages. A pull in a wrong partition is sent again once."""
    topic = coordinator.topic(1)
    desk = join([topic])
    waiting = desk.fetch(topic, 0)
    pull = desk.wait_for_pull()
    raw = base64.b64encode(msgspec.json.encode(pull)).decode()
    for seq in (1, 2):
        refusal = Rejected(shard="queues-0.9", seq=seq, rule="partition", detail="it belongs elsewhere", raw=raw)
        coordinator.tell(desk.consumer.client_id, encode_decision(refusal))

    with pytest.raises(RequestRefused, match=rf"rejected a pull of {topic}-0 \(partition\): it belongs elsewhere"):
        waiting.result(PATIENCE_S)


# --- wrong usage ---


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"queue": "orders-0"}, "queue is 'orders-0'; it must be a Queue, or a topic and a number"),
        ({"queue": ("payments", 0)}, "cannot fetch payments-0: it is not a queue of this consumer's topics: "),
        ({"number": -1}, "queue is .*; queue_id must be a whole number"),
        ({"broker": "broker-a"}, "cannot fetch .*@broker-a-0"),
        ({"offset": -1}, "offset is -1; it must be a whole number of at least 0"),
        ({"wait": 601}, "wait is 601; it must be a number from 0 to 600"),
        ({"wait": float("nan")}, "wait is nan; it must be a number from 0 to 600"),
        ({"max_messages": 0}, "max_messages is 0; it must be a whole number from 1 to"),
    ],
)
def test_a_wrong_argument_of_fetch_is_named(one_consumer, arguments, sentence):
    topic, consumer = one_consumer
    queue = arguments.get("queue", Queue(topic, arguments.get("broker", ""), arguments.get("number", 0)))
    given = {name: arguments[name] for name in arguments if name in ("offset", "wait", "max_messages")}

    with pytest.raises(InvalidUsage, match=sentence):
        consumer.fetch(queue, **{"offset": 0, **given})


def test_a_queue_that_kafka_does_not_have_is_named(coordinator, join):
    topic = coordinator.topic(1)

    with pytest.raises(NotReachable, match=f"cannot read the end offset of {topic}-7: "):
        join([topic]).consumer.fetch((topic, 7), 0, wait=0)


# --- the producer ---


def test_each_message_is_told_and_a_flush_waits_for_that_too(coordinator, producer):
    topic = coordinator.topic(2)
    delivered: list[tuple[object, int | None, int | None]] = []

    def note(error: object, message: Message) -> None:
        delivered.append((error, message.partition(), message.offset()))

    producer.send(topic, b"1", partition=1, tags="paid", on_delivery=note)
    assert producer.flush(PATIENCE_S)
    producer.send(topic, b"2", partition=1, properties={"region": "EU"}, on_delivery=note)
    assert producer.flush(PATIENCE_S)

    assert delivered == [(None, 1, 0), (None, 1, 1)]
    wait_until(lambda: len(told_of(coordinator, topic)) == 2, "both are told")
    assert [(one.next_offset, one.tags, one.tags_code, one.properties) for one in told_of(coordinator, topic)] == [
        (1, "paid", 3433164, {}),
        (2, "", 0, {"region": "EU"}),
    ]


def test_keys_go_where_those_of_kafkas_java_clients_go(coordinator, join, producer):
    """Somebody else's producer writes to the same topic: a key has one queue."""
    topic = coordinator.topic(4)
    for key in ("billing", b"c1", "orders@3"):
        producer.send(topic, key, key=key)
    assert producer.flush(PATIENCE_S)
    desk = join([topic])

    found = {number: values(desk.fetch(topic, 0, wait=0, number=number).result(PATIENCE_S)) for number in range(4)}

    assert found == {0: [], 1: [b"billing"], 2: [], 3: [b"c1", b"orders@3"]}


def test_a_lost_message_is_reported(coordinator):
    """By its callback, and by the flush for whoever has none."""
    topic = f"never-made-{uuid.uuid4().hex[:6]}"
    failed: list[str] = []
    hasty = Producer(
        coordinator.connection.bootstrap,
        prefix=coordinator.connection.topics.prefix,
        kafka_config={"message.timeout.ms": "500"},
    )
    hasty.send(topic, b"1", on_delivery=lambda error, _: failed.append(error.str()))

    assert not hasty.flush(PATIENCE_S)
    assert len(failed) == 1
    assert hasty.flush(PATIENCE_S)
    hasty.close()


def test_what_a_callback_raises_is_raised_by_the_next_call(coordinator, producer):
    """It runs on a thread that nobody waits for; other messages are told of all the same."""
    topic = coordinator.topic(1)

    def fail(*_: object) -> None:
        raise KeyError("no such order")

    producer.send(topic, b"1", partition=0, on_delivery=fail)
    with pytest.raises(WakerollError, match=r"on_delivery failed: KeyError\('no such order'\)"):
        producer.flush(PATIENCE_S)

    producer.send(topic, b"2", partition=0)
    assert producer.flush(PATIENCE_S)


def test_a_callback_may_send_but_not_wait_for_itself(coordinator, join, producer):
    topic = coordinator.topic(1)
    refused: list[str] = []

    def go_on(*_: object) -> None:
        producer.send(topic, b"2", partition=0)
        for wait in (producer.flush, producer.close):
            with pytest.raises(InvalidUsage) as problem:
                wait()
            refused.append(str(problem.value))

    producer.send(topic, b"1", partition=0, on_delivery=go_on)
    assert producer.flush(PATIENCE_S)

    assert values(join([topic]).consumer.fetch((topic, 0), 0)) == [b"1", b"2"]
    assert refused == [
        f"on_delivery called {name}(), which waits for on_delivery; call it in another thread"
        for name in ("flush", "close")
    ]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"topic": "or ders"}, "topic is 'or ders'; it must be 1 to 249 letters"),
        ({"topic": "%RETRY%billing"}, "topic is '%RETRY%billing'"),
        ({"topic": ".."}, r"topic is '\.\.'"),
        ({"topic": None}, "topic is None"),
        ({"value": 7}, "value is 7; it must be bytes or text"),
        ({"key": 7}, "key is 7; it must be bytes or text"),
        ({"partition": -1}, "partition is -1; it must be a whole number"),
        ({"tags": "x" * 4_097}, "tags is 'xxx"),
        ({"properties": {"region": b"EU"}}, "property 'region' is"),
        ({"headers": {"trace": "7"}}, "header 'trace' is"),
    ],
)
def test_a_wrong_argument_of_send_is_named(producer, arguments, sentence):
    with pytest.raises(InvalidUsage, match=sentence):
        producer.send(**{"topic": "orders", "value": b"", **arguments})


def test_a_message_that_is_too_large_is_refused_and_the_next_one_is_not(coordinator, producer):
    topic = coordinator.topic(1)

    with pytest.raises(WakerollError, match=r"Kafka's client rejects this message: .*too large"):
        producer.send(topic, b"x" * 9_000_000, partition=0)
    producer.send(topic, b"1", partition=0)
    assert producer.flush(PATIENCE_S)


def test_a_closed_producer_has_sent_everything_and_takes_nothing_more(coordinator, join):
    topic = coordinator.topic(1)
    producer = Producer(coordinator.connection.bootstrap, prefix=coordinator.connection.topics.prefix)
    for number in range(1_000):
        producer.send(topic, str(number), partition=0)

    producer.close()
    producer.close()

    assert len(join([topic]).consumer.fetch((topic, 0), 0, max_messages=1_000).messages) == 1_000
    assert not producer._thread.is_alive()
    with pytest.raises(InvalidUsage, match="this Producer is closed; create a new one"):
        producer.send(topic, b"")
