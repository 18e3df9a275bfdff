"""A coordinator and topics in memory: the real machine, the real client, the real push loop, and no broker."""

import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence

from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, Message

from model.client import Client, Preferences
from model.client_actions import Give
from model.decisions import AnyDecision, FailedMessages
from model.events import AnyEvent, Commit, Event, Route, RoutedQueue, Subscription, Tick
from model.queue import Queue
from model.retry_topics import DELAYS_S, retry_topic_of
from model.shard import Shard
from tests.support.control_log import TOPIC, ControlLog
from wakeroll.epoch_ms import now_ms
from wakeroll.heartbeat_thread import Control
from wakeroll.origin import headers_with
from wakeroll.push.failure_handling import RetryRules
from wakeroll.push.limits import PushLimits
from wakeroll.push.push_loop import PushLoop
from wakeroll.push.send_back import Letter
from wakeroll.push.workers import Handler
from wakeroll.queue_starts import QueueStarts
from wakeroll.topic_filters import TopicFilters

GROUP = "billing"
ORDERS = "orders"
RETRIES = retry_topic_of(GROUP)
FETCHED = 40
"""Messages of a queue that a fetch returns at most."""


class MemoryPlane:
    """One topic of messages and the group that consumes it. Any thread may call it."""

    def __init__(self, queues: int) -> None:
        """Begin without messages, and with a retry topic that no client subscribes yet."""
        self.messages: dict[Queue, list[Message]] = defaultdict(list)
        """Queue -> its messages."""
        self.dead: list[Letter] = []
        """Dead letters, in order."""
        self.failures: list[FailedMessages] = []
        """Decisions about failed messages, in order."""
        self.commits: list[tuple[int, int]] = []
        """Queue number and offset of each commit, in order of arrival."""
        self.store_delay_s: Callable[[], float] = lambda: 0.0
        """Returns how long it takes until a failed message is stored (s)."""
        self.on_commit: Callable[[int, int], object] = max
        """Called with the number and the offset of each commit that arrives."""
        self._lock = threading.RLock()
        self._log = ControlLog(1)
        self._shard = Shard(TOPIC, 0, 1, raises=True)
        self._inboxes: dict[str, deque[AnyDecision]] = defaultdict(deque)
        self._began_s = time.monotonic()
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

    def store(self, letter: Letter) -> None:
        """Store a failed message in the retry topic, or as a dead letter."""
        with self._lock:
            if not letter.level:
                self.dead.append(letter)
                return
            queue = Queue(RETRIES, "", letter.level - 1)
            message = Message(
                topic=RETRIES,
                partition=queue.queue_id,
                offset=len(self.messages[queue]),
                key=letter.message.key(),
                value=letter.message.value(),
                headers=headers_with(letter.message, letter.origin),
                timestamp=(TIMESTAMP_LOG_APPEND_TIME, now_ms()),
            )
            self.messages[queue].append(message)

    def append(self, event: AnyEvent) -> None:
        """Append an event, and put the decisions into the inboxes."""
        with self._lock:
            if isinstance(event, Commit):
                for entry in (one for one in event.offsets if one.queue.topic == ORDERS):
                    self.on_commit(entry.queue.queue_id, entry.offset)
                    self.commits.append((entry.queue.queue_id, entry.offset))
            for record in self._log.append(event, round((time.monotonic() - self._began_s) * 1_000)):
                for decision in self._shard.apply(record):
                    if isinstance(decision, FailedMessages):
                        self.failures.append(decision)
                    client_id = getattr(decision, "client_id", None)
                    if client_id:
                        self._inboxes[client_id].append(decision)

    def offsets(self) -> dict[int, int]:
        """Return the committed offsets: queue number -> offset."""
        with self._lock:
            group = self._shard.group(GROUP)
            known = {} if group is None else group.offsets
            return {queue.queue_id: offset for queue, offset in known.items() if queue.topic == ORDERS}

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
        self,
        plane: MemoryPlane,
        client_id: str,
        handler: Handler,
        limits: PushLimits,
        *,
        orderly: bool = False,
        rules: RetryRules | None = None,
    ) -> None:
        """Join the group and consume; without `rules`, an exception of the handler ends the loop."""
        super().__init__(name=client_id, daemon=True)
        self.client_id = client_id
        self.problem: BaseException | None = None
        """What the handler raised."""
        topics = [ORDERS] if rules is None or rules.in_place else [ORDERS, RETRIES]
        subscriptions = [Subscription(topic=topic) for topic in topics]
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
            rules,
            _Sender(plane),
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


class _Sender:
    """Stores failed messages at once, and says so in another thread, as Kafka's client does."""

    def __init__(self, plane: MemoryPlane) -> None:
        self._plane = plane

    def send(self, letters: Sequence[Letter], on_stored: Callable[[], None]) -> None:
        def store() -> None:
            time.sleep(self._plane.store_delay_s())
            for letter in letters:
                self._plane.store(letter)
            on_stored()

        threading.Thread(target=store, daemon=True).start()

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
            messages = [] if queue in self._paused else self._plane.messages[queue][position:][:count]
            if messages:
                self._positions[queue] += len(messages)
                most -= len(messages)
                found.append((give, messages))
            if not most:
                break
        if not found:
            time.sleep(timeout / 10)
        return found

    def hold_back(self, queues: Iterable[Queue]) -> None:
        assert set(queues) <= self._reading.keys()
        self._paused |= set(queues)

    def go_on(self, queues: Iterable[Queue]) -> None:
        assert set(queues) <= self._paused
        self._paused -= set(queues)

    def set_back(self, positions: Iterable[tuple[Give, int]]) -> None:
        for give, position in positions:
            if self._reading.get(give.queue) == give:
                self._positions[give.queue] = position
