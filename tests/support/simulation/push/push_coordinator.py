"""The coordinator and the topics of a simulated world: the real shard, and an inbox and an outbox in memory."""

from collections import defaultdict, deque
from collections.abc import Callable
from functools import partial

from confluent_kafka import Message

from tests.support.control_log import TOPIC, ControlLog
from tests.support.simulation.push.scheduled_threads import Scheduler
from wakeroll.slice_by import key_of
from wakeroll_model.decisions import AnyDecision
from wakeroll_model.events import AnyEvent, Event, Route, RoutedQueue, Tick
from wakeroll_model.queue import Queue
from wakeroll_model.retry_topics import DELAYS_S, retry_topic_of
from wakeroll_model.shard import Shard
from wakeroll_model.slices import slice_of

GROUP = "billing"
ORDERS = "orders"
RETRIES = retry_topic_of(GROUP)


def is_in(message: Message, queue: Queue) -> bool:
    """Return whether a message of a partition is in this slice of it; each is in the whole queue."""
    return slice_of(key_of(message), queue.slices) == queue.slice


class SimulatedCoordinator:
    """One group, the topic that it consumes, and its retry topic. Time is the scheduler's."""

    def __init__(self, queues: int, scheduler: Scheduler) -> None:
        """Begin without messages, and with a retry topic that no client subscribes yet."""
        self.scheduler = scheduler
        self.messages: dict[Queue, list[Message]] = defaultdict(list)
        """Queue -> its messages."""
        self.shard = Shard(TOPIC, 0, 1, raises=True)
        self._log = ControlLog(1)
        self._inboxes: dict[str, deque[AnyDecision]] = defaultdict(deque)
        self._began_s = scheduler.now_s
        self._ticked_s = 0.0
        self.append(Tick())
        for topic, count in ((ORDERS, queues), (RETRIES, len(DELAYS_S))):
            routed = [RoutedQueue(topic=topic, broker="", queue_id=number) for number in range(count)]
            self.append(Route(topic=topic, queues=routed, version="1"))

    def produce(self, number: int, count: int, keys: int = 0) -> None:
        """Append messages to a queue; with `keys`, so many different ones in turn."""
        queue = self.messages[Queue(ORDERS, "", number)]
        for _ in range(count):
            offset = len(queue)
            key = str(offset % keys).encode() if keys else None
            queue.append(Message(topic=ORDERS, partition=number, offset=offset, key=key, value=b"v"))

    def append(self, event: AnyEvent) -> tuple[int, int]:
        """Append an event, and put the decisions into the inboxes; return the event's partition and offset."""
        records = self._log.append(event, round((self.scheduler.now_s - self._began_s) * 1_000))
        for record in records:
            for decision in self.shard.apply(record):
                client_id = getattr(decision, "client_id", None)
                if client_id:
                    self._inboxes[client_id].append(decision)
        return records[-1].partition, records[-1].offset

    def offsets(self) -> dict[Queue, int]:
        """Return the committed offsets of the topic's queues, or of their slices."""
        group = self.shard.group(GROUP)
        known = {} if group is None else group.offsets
        return {queue: offset for queue, offset in known.items() if queue.topic == ORDERS}

    def messages_of(self, queue: Queue) -> list[Message]:
        """Return the messages of a queue, or of a slice."""
        return [message for message in self.messages[queue.whole] if is_in(message, queue)]

    def heard(self, client_id: str) -> list[AnyDecision]:
        """Return new decisions of a client, after a tick if it is time for one."""
        if self.scheduler.now_s >= self._ticked_s + 0.5:
            self._ticked_s = self.scheduler.now_s
            self.append(Tick())
        found = list(self._inboxes[client_id])
        self._inboxes[client_id].clear()
        return found


class SimulatedInbox:
    """The part of `Inbox` that `Control` uses."""

    def __init__(self, coordinator: SimulatedCoordinator, client_id: str) -> None:
        self._coordinator = coordinator
        self._client_id = client_id

    def poll(self, timeout: float) -> list[AnyDecision]:
        if not (found := self._coordinator.heard(self._client_id)):
            self._coordinator.scheduler.sleep(timeout)
        return found

    def is_deaf(self, _session_timeout_ms: int) -> bool:
        return False

    def was_replaced(self) -> bool:
        return False

    def suspect(self) -> None:
        pass

    def close(self) -> None:
        pass


class SimulatedOutbox:
    """The part of `Outbox` that `Control` uses: acknowledgements come later, from `serve`."""

    def __init__(self, coordinator: SimulatedCoordinator, cut_until_s: Callable[[], float]) -> None:
        """`cut_until_s` returns until when events are lost."""
        self._coordinator = coordinator
        self._cut_until_s = cut_until_s
        self._acknowledged: deque[Callable[[], None]] = deque()

    def send(self, event: Event, on_delivered: Callable[[int, int], None] | None = None) -> None:
        if self._coordinator.scheduler.now_s < self._cut_until_s():
            return
        place = self._coordinator.append(event)
        if on_delivered is not None:
            self._acknowledged.append(partial(on_delivered, *place))

    def learn_partitions(self, _timeout: float) -> None:
        pass

    def serve(self) -> None:
        while self._acknowledged:
            self._acknowledged.popleft()()

    def flush(self, _timeout: float) -> bool:
        self.serve()
        return True

    def close(self) -> None:
        pass
