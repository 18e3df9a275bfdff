"""From a message to a wake: the observer on a real broker sees queues grow, the real machine wakes who waits."""

import threading
import uuid
from collections.abc import Iterator

import msgspec
import pytest
from confluent_kafka.admin import AdminClient

from tests.support.waiting import wait_until
from wakeroll_model.decisions import Rejected, Wake
from wakeroll_model.events import Arrival, Heartbeat, Pull, Subscription
from wakeroll_model.queue import Queue
from wakeroll_model.signing import DEV_KEYS
from wakeroll_pipeline.observer.observer_loop import observe

pytestmark = pytest.mark.e2e


class Waiting:
    """Clients of a coordinator who send nothing but pulls, and its observer."""

    def __init__(self, coordinator) -> None:
        self._coordinator = coordinator
        self._topics = coordinator.connection.topics
        self._producer = coordinator.connection.producer()

    def beat(self, topic: str) -> None:
        """Let a member of a group subscribe a topic."""
        beat = Heartbeat(group_id="billing", client_id="c1", instance_id="1", subscriptions=[Subscription(topic=topic)])
        self._append(self._topics.groups, beat, "billing")

    def pull(self, queue: Queue, from_offset: int) -> str:
        """Wait for messages of a queue; return the request's id."""
        instance_id = uuid.uuid4().hex
        pull = Pull(
            request_id=f"{instance_id}:1",
            group_id="analytics",
            client_id=f"c-{instance_id}",
            instance_id=instance_id,
            queue=queue,
            from_offset=from_offset,
            timeout_ms=600_000,
        )
        self._append(self._topics.queues, pull, queue.key)
        wait_until(lambda: pull in self._coordinator.heard, "the pull is held")
        return pull.request_id

    def wake(self, request_id: str) -> Wake:
        """Wait until a pull is answered."""

        def wakes() -> list[Wake]:
            decided = tuple(self._coordinator.decided)
            return [said for said in decided if isinstance(said, Wake) and said.request_id == request_id]

        wait_until(wakes, "the pull is answered")
        [wake] = wakes()
        return wake

    def arrivals(self, queue: Queue) -> list[Arrival]:
        """Return the arrivals of a queue so far."""
        return [said for said in tuple(self._coordinator.heard) if isinstance(said, Arrival) and said.queue == queue]

    def _append(self, topic: str, event: Heartbeat | Pull, key: str) -> None:
        self._producer.produce(topic, msgspec.json.encode(event), key=key.encode())
        assert self._producer.flush(30) == 0


@pytest.fixture(scope="module")
def admin(broker) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.bootstrap})


@pytest.fixture(scope="module")
def waiting(coordinator) -> Iterator[Waiting]:
    """An observer, in this process."""
    stop = threading.Event()
    observer = threading.Thread(target=observe, args=(coordinator.connection, DEV_KEYS, stop), name="observer")
    observer.start()
    yield Waiting(coordinator)
    stop.set()
    observer.join()


def test_a_plain_message_is_an_arrival_for_whoever_subscribes_its_topic(coordinator, waiting):
    """Producers need not know of the control plane; and an end that stays where it is, is not told again."""
    topic = coordinator.topic(2)
    coordinator.produce(topic, 1, 3)
    waiting.beat(topic)
    silent, growing = Queue(topic, "", 0), Queue(topic, "", 1)

    wait_until(lambda: waiting.arrivals(growing), "the first end is told")
    coordinator.produce(topic, 1, 4)
    wait_until(lambda: waiting.arrivals(growing)[-1].next_offset == 7, "the new end is told")

    assert waiting.arrivals(silent) == []
    assert [said.next_offset for said in waiting.arrivals(growing)] == [3, 7]
    assert len({said.observer for said in waiting.arrivals(growing)} - {""}) == 1


def test_a_plain_message_wakes_who_pulls_a_topic_that_nobody_subscribes(coordinator, waiting):
    """A pull is enough to be looked after; each message that ends a wait is told, once."""
    queue = Queue(coordinator.topic(1), "", 0)
    coordinator.produce(queue.topic, 0, 2)
    late, early = waiting.pull(queue, 1), waiting.pull(queue, 2)
    assert waiting.wake(late).next_offset == 2

    coordinator.produce(queue.topic, 0, 1)

    assert (waiting.wake(early).reason, waiting.wake(early).next_offset) == ("arrival", 3)
    assert [arrival.next_offset for arrival in waiting.arrivals(queue)] == [2, 3]
    assert not any(isinstance(said, Rejected) for said in coordinator.decided)


def test_who_waits_at_the_end_of_a_topic_that_is_made_anew_is_woken(coordinator, waiting, admin):
    """Its offsets begin again: without a word, a client would wait for an offset that is far away."""
    queue = Queue(coordinator.topic(1), "", 0)
    coordinator.produce(queue.topic, 0, 50)
    request_id = waiting.pull(queue, 50)

    admin.delete_topics([queue.topic])[queue.topic].result(30)
    wait_until(lambda: queue.topic not in admin.list_topics(timeout=30).topics, "it is gone")
    coordinator.topic(1, queue.topic)

    wake = waiting.wake(request_id)
    assert (wake.reason, wake.next_offset) == ("truncated", 0)


def test_a_pull_of_what_is_not_there_harms_nobody(coordinator, waiting, admin):
    """Neither is a topic made by asking for it, nor does anybody else wait longer."""
    stray, queue = Queue(f"stray-{uuid.uuid4().hex}", "", 7), Queue(coordinator.topic(1), "", 0)
    ours = Queue(coordinator.connection.topics.groups, "", 0)
    waiting.pull(stray, 5)
    waiting.pull(ours, 5)
    waiting.pull(Queue(queue.topic, "", 9), 5)
    request_id = waiting.pull(queue, 0)

    coordinator.produce(queue.topic, 0, 1)

    wake = waiting.wake(request_id)
    assert (wake.reason, wake.next_offset) in (("arrival", 1), ("unknown", 0))  # as the observer's first report comes
    assert (waiting.arrivals(stray), waiting.arrivals(ours)) == ([], [])
    assert stray.topic not in admin.list_topics(timeout=30).topics
