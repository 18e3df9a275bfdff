"""A broker in memory with one topic and one group, which records commits and failures; time passes by itself."""

from collections.abc import Callable, Iterator
from contextlib import suppress

from confluent_kafka import Message

from wakeroll.connection import Topics
from wakeroll.origin import Origin, origin_of
from wakeroll.push.failure_handling import RetryRules
from wakeroll.push.limits import PushLimits
from wakeroll.push.outcomes import Handler
from wakeroll.testing import MemoryBroker
from wakeroll.testing.memory_log import Stored, message_of
from wakeroll_model.decisions import AnyDecision, FailedMessages
from wakeroll_model.events import Commit
from wakeroll_model.records import Record, read_event
from wakeroll_model.retry_topics import dead_letter_topic_of

GROUP = "billing"
ORDERS = "orders"


class MemoryPlane(MemoryBroker):
    """One topic of messages and the group that consumes it. Any thread may call it."""

    def __init__(self, queues: int) -> None:
        """Begin without messages."""
        super().__init__(real_time=True)
        self.failures: list[FailedMessages] = []
        """Decisions about failed messages, in order."""
        self.store_delay_s: Callable[[], float] = lambda: 0.0
        """Returns how long it takes until the storing of a failed message is known (s)."""
        self.on_commit: Callable[[int, int], object] = max
        """Called with the number and the offset of each commit that arrives."""
        self._log.receipt_delay_s = lambda topic: 0.0 if topic in Topics().all else self.store_delay_s()
        self._coordinator.on_decision = self._decided
        decide, self._log.on_appended = self._log.on_appended, self._watch
        self._decide = decide
        self.create_topic(ORDERS, queues)

    def produce(self, number: int, count: int, keys: int = 0) -> None:
        """Append messages to a queue; with `keys`, so many different ones in turn."""
        for at in range(count):
            self.send(ORDERS, b"v", key=str(at % keys) if keys else None, queue=number)

    @property
    def dead(self) -> list[Origin]:
        """The dead letters, in order."""
        return [origin_of(message) for message in self.messages(dead_letter_topic_of(GROUP))]

    def messages(self, topic: str | None = None) -> Iterator[Message]:
        """Yield the messages of a topic, or of all but the control topics."""
        with self._log.lock:
            for name, partitions in list(self._log.topics.items()):
                if topic == name or (topic is None and name not in Topics().all):
                    for number, partition in enumerate(partitions):
                        yield from [message_of(name, number, record) for record in partition.records]

    def offsets(self) -> dict[int, int]:
        """Return the committed offsets: queue number -> offset."""
        return {queue.queue_id: offset for queue, offset in self.committed(GROUP).items()}

    def _watch(self, topic: str, number: int, record: Stored) -> None:
        if topic == Topics().groups:
            event = read_event(Record(topic, 0, record.offset, 0, record.key, record.value), 1)
            if isinstance(event, Commit):
                for entry in (one for one in event.offsets if one.queue.topic == ORDERS):
                    self.on_commit(entry.queue.queue_id, entry.offset)
        self._decide(topic, number, record)

    def _decided(self, decision: AnyDecision) -> None:
        if isinstance(decision, FailedMessages):
            self.failures.append(decision)


class PushClient:
    """A consumer that runs a handler in a thread, until `stop`."""

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
        run = {} if rules is None else {"max_retries": rules.max_retries, "handle_timeout": rules.handle_timeout}
        self.client_id = client_id
        self.member = plane.join(
            GROUP,
            [ORDERS],
            handler,
            client_id=client_id,
            orderly=orderly,
            strategy="SPREAD",
            commit_interval=0.02,
            on_error="raise" if rules is None else "retry",
            workers=limits.workers,
            batch_size=limits.batch_size,
            prefetch=limits.prefetch,
            **run,
        )

    @property
    def problem(self) -> BaseException | None:
        """What the handler raised."""
        return self.member.problem

    def is_alive(self) -> bool:
        """Return whether it consumes."""
        return self.member.is_running

    def stop(self) -> None:
        """Let the calls at work return, and leave."""
        with suppress(BaseException):  # the test reads `problem`
            self.member.stop(timeout=60)
