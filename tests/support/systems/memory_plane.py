"""A coordinator and topics in memory: the real machine, the real client, the real push loop, and no broker."""

import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable

from confluent_kafka import Message

from model.client import Client, Preferences
from model.client_actions import Give
from model.decisions import AnyDecision
from model.events import AnyEvent, Commit, Event, Route, RoutedQueue, Subscription, Tick
from model.queue import Queue
from model.shard import Shard
from tests.support.control_log import TOPIC, ControlLog
from wakeroll.heartbeat_thread import Control
from wakeroll.push.limits import PushLimits
from wakeroll.push.push_loop import PushLoop
from wakeroll.push.workers import Handler
from wakeroll.queue_starts import QueueStarts
from wakeroll.topic_filters import TopicFilters

GROUP = "billing"
ORDERS = "orders"
FETCHED = 40
"""Messages of a queue that a fetch returns at most."""


class MemoryPlane:
    """One topic of messages and the group that consumes it. Any thread may call it."""

    def __init__(self, queues: int) -> None:
        """Begin without messages."""
        self.messages: dict[int, list[Message]] = {number: [] for number in range(queues)}
        """Queue number -> its messages."""
        self.commits: list[tuple[int, int]] = []
        """Queue number and offset of each commit, in order of arrival."""
        self.on_commit: Callable[[int, int], object] = max
        """Called with the number and the offset of each commit that arrives."""
        self._lock = threading.RLock()
        self._log = ControlLog(1)
        self._shard = Shard(TOPIC, 0, 1, raises=True)
        self._inboxes: dict[str, deque[AnyDecision]] = defaultdict(deque)
        self._began_s = time.monotonic()
        routed = [RoutedQueue(topic=ORDERS, broker="", queue_id=number) for number in range(queues)]
        self.append(Tick())
        self.append(Route(topic=ORDERS, queues=routed, version="1"))

    def produce(self, number: int, count: int, keys: int = 0) -> None:
        """Append messages to a queue; with `keys`, so many different ones in turn."""
        queue = self.messages[number]
        for _ in range(count):
            offset = len(queue)
            key = str(offset % keys).encode() if keys else None
            queue.append(Message(topic=ORDERS, partition=number, offset=offset, key=key, value=b"v"))

    def append(self, event: AnyEvent) -> None:
        """Append an event, and put the decisions into the inboxes."""
        with self._lock:
            if isinstance(event, Commit):
                for entry in event.offsets:
                    self.on_commit(entry.queue.queue_id, entry.offset)
                    self.commits.append((entry.queue.queue_id, entry.offset))
            for record in self._log.append(event, round((time.monotonic() - self._began_s) * 1_000)):
                for decision in self._shard.apply(record):
                    client_id = getattr(decision, "client_id", None)
                    if client_id:
                        self._inboxes[client_id].append(decision)

    def offsets(self) -> dict[int, int]:
        """Return the committed offsets: queue number -> offset."""
        with self._lock:
            group = self._shard.group(GROUP)
            return {} if group is None else {queue.queue_id: offset for queue, offset in group.offsets.items()}

    def heard(self, client_id: str) -> list[AnyDecision]:
        """Return new decisions of a client, after a tick."""
        self.append(Tick())
        with self._lock:
            inbox = self._inboxes[client_id]
            found = list(inbox)
            inbox.clear()
            return found


class PushClient(threading.Thread):
    """A consumer that runs a push loop in a thread, until `stop`."""

    def __init__(
        self, plane: MemoryPlane, client_id: str, handler: Handler, limits: PushLimits, *, orderly: bool = False
    ) -> None:
        """Join the group and consume."""
        super().__init__(name=client_id, daemon=True)
        self.client_id = client_id
        self.problem: BaseException | None = None
        """What the handler raised."""
        subscriptions = [Subscription(topic=ORDERS)]
        preferences = Preferences(subscriptions=subscriptions, consume_from="first", orderly=orderly, strategy="SPREAD")
        client = Client(GROUP, client_id, preferences, commit_interval_ms=20)
        self._reader = _Reader(plane)
        self._control = Control(client, _Inbox(plane, client_id), _Outbox(plane), lambda _: None)  # type: ignore[arg-type]
        starts = QueueStarts(self._control, self._reader, None)  # type: ignore[arg-type]
        self._loop = PushLoop(
            self._control,
            self._reader,  # type: ignore[arg-type]
            starts,
            TopicFilters(subscriptions),
            handler,
            limits,
            orderly=orderly,
            on_revoked=None,
            name=client_id,
        )
        self._stopping = False
        self._control.start()
        self.start()

    def run(self) -> None:
        """Consume until `stop`, or until the handler raises."""
        try:
            self._loop.run(lambda: not self._stopping, lambda: 30.0)
        except BaseException as problem:
            self.problem = problem

    def stop(self) -> None:
        """Let the calls at work return, and leave."""
        self._stopping = True
        self.join()
        self._control.leave(1.0)


class _Inbox:
    """The part of `Inbox` that `Control` uses."""

    def __init__(self, plane: MemoryPlane, client_id: str) -> None:
        self._plane = plane
        self._client_id = client_id

    def poll(self, timeout: float) -> list[AnyDecision]:
        if not (found := self._plane.heard(self._client_id)):
            time.sleep(timeout / 10)
        return found

    def is_deaf(self, _session_timeout_ms: int) -> bool:
        return False

    def close(self) -> None:
        pass


class _Outbox:
    """The part of `Outbox` that `Control` uses: acknowledgements come later, from `serve`."""

    def __init__(self, plane: MemoryPlane) -> None:
        self._plane = plane
        self._acknowledged: deque[Callable[[], None]] = deque()

    def send(self, event: Event, on_delivered: Callable[[], None] | None = None) -> None:
        self._plane.append(event)
        if on_delivered is not None:
            self._acknowledged.append(on_delivered)

    def serve(self) -> None:
        while self._acknowledged:
            self._acknowledged.popleft()()

    def flush(self, _timeout: float) -> bool:
        self.serve()
        return True

    def close(self) -> None:
        pass


class _Reader:
    """The part of `Reader` that the push loop uses."""

    def __init__(self, plane: MemoryPlane) -> None:
        self._plane = plane
        self._reading: dict[Queue, Give] = {}
        self._positions: dict[Queue, int] = {}
        self._paused: set[Queue] = set()

    @property
    def queues(self) -> list[Queue]:
        return sorted(self._reading)

    @property
    def is_idle(self) -> bool:
        return not self._reading

    def start(self, gives: list[Give]) -> list[tuple[Give, int]]:
        for give in gives:
            assert give.queue not in self._reading
            self._reading[give.queue] = give
            self._positions[give.queue] = give.start.offset or 0
        return [(give, self._positions[give.queue]) for give in gives]

    def stop_all_but(self, gives: dict[Queue, Give]) -> list[Queue]:
        stopped = sorted(queue for queue, give in self._reading.items() if gives.get(queue) != give)
        for queue in stopped:
            del self._reading[queue], self._positions[queue]
            self._paused.discard(queue)
        return stopped

    def take(self, most: int, timeout: float) -> list[tuple[Give, list[Message]]]:
        found = []
        for queue, give in self._reading.items():
            position, count = self._positions[queue], min(most, FETCHED)
            messages = [] if queue in self._paused else self._plane.messages[queue.queue_id][position:][:count]
            if messages:
                self._positions[queue] += len(messages)
                most -= len(messages)
                found.append((give, messages))
            if not most:
                break
        if not found:
            time.sleep(timeout / 10)
        return found

    def pause(self, queues: Iterable[Queue]) -> None:
        assert set(queues) <= self._reading.keys()
        self._paused |= set(queues)

    def resume(self, queues: Iterable[Queue]) -> None:
        assert set(queues) <= self._paused
        self._paused -= set(queues)

    def set_back(self, positions: Iterable[tuple[Give, int]]) -> None:
        for give, position in positions:
            if self._reading.get(give.queue) == give:
                self._positions[give.queue] = position
