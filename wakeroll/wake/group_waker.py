"""The process that starts workers of a group while the group has no members and something to read."""

import logging
import threading
import time
from collections.abc import Callable, Iterable

from confluent_kafka import KafkaException

from wakeroll import argument_checks, epoch_ms
from wakeroll.connection import Connection
from wakeroll.decision_log import DecisionLog, Said
from wakeroll.errors import InvalidUsage, NotReachable
from wakeroll.group_summary import History
from wakeroll.monotonic_clock import now_ms
from wakeroll.name_lists import names_of
from wakeroll.partition_offsets import Positions
from wakeroll.puller import Puller
from wakeroll.topic_patterns import may_match
from wakeroll.wake.lease import Lease
from wakeroll.wake.worker_starters import GroupSize, Starter, Worker
from wakeroll_model.decisions import Membership, Offset
from wakeroll_model.events import Subscription
from wakeroll_model.pull_client import PullEnded
from wakeroll_model.queue import Queue
from wakeroll_model.retry_topics import delay_ms_of, retry_topic_of
from wakeroll_model.sleeping_group import SleepingGroup, WakeRules, Wanted

log = logging.getLogger("wakeroll")

SLICE_S = 0.1
"""Longest wait for a decision before workers and pulls are checked (s)."""
HOLD_MS = 60_000
"""How long the coordinator holds a pull (ms). A lost wake is repeated after this time."""
REFRESH_MS = 30_000
"""Interval in which the queues of the topics and the group's partition of the decisions are queried (ms)."""
RETRY_MS = 2_000
"""Pause before the next pull of a queue whose pull cannot be held now (ms)."""
QUERY_MS = 1_000
"""Minimum time between two queries of Kafka for the ends of queues (ms); one query is for all queues."""
LEAVE_S = 5.0

Matching = Callable[[str, Iterable[str]], list[str]]
"""Returns the topics whose whole names match a pattern, as an observer does; for a sleeping group, none does."""


class GroupWaker:
    """Watches one group. Of several, the one with the lease, a queue of the group ``wake.<G>``, starts workers.

    It sends pulls to the coordinator, and reads no messages: while the group sleeps, Kafka receives one pull per queue
    and minute.
    """

    def __init__(
        self,
        connection: Connection,
        group_id: str,
        starter: Starter,
        *,
        matching: Matching,
        topics: Iterable[str] = (),
        rules: WakeRules | None = None,
        timeout: float = 10.0,
    ) -> None:
        """Read the decisions about the group, and join the group of its wakers.

        Args:
            connection: the brokers.
            group_id: the group that sleeps.
            starter: starts its workers.
            matching: evaluates the patterns of its members.
            topics: its topics; if omitted, those for which it has committed offsets, and those that match a pattern of
                its members, or of its last ones.
            rules: limits; None: the defaults.
            timeout: seconds to wait for a broker.

        Raises:
            InvalidUsage: an argument is not valid, no topic of the group is known, or it is a broadcasting group.
            NotReachable: no broker answered in time, or it has no control plane.
        """
        self._group_id = argument_checks.group_id_of(group_id)
        own_group = argument_checks.group_id_of(f"wake.{group_id}")
        self._starter = starter
        self._named = tuple(topics)
        self._matching = matching
        self._timeout = timeout
        self._consumer = connection.operators_consumer()
        self._positions = Positions(self._consumer, timeout)
        self._connection = connection
        try:
            with connection.answering(timeout):
                self._log = DecisionLog.of_group(connection, self._consumer, group_id, timeout, is_lasting=True)
                self._log.from_the_start()
                self._history = History.of(self._log.until_now())
                self._refuse_broadcasting()
                self._topics = self._known_topics()
                self._queues = self._look_up()
            client_id = argument_checks.client_id_of(None)
            self._puller = Puller(connection, own_group, client_id)
            self._lease = Lease(connection, own_group, client_id, self._lease_topic(), timeout, self._puller.hear)
        except BaseException:
            self._consumer.close()
            raise
        age_ms = max(epoch_ms.now_ms() - self._history.newest_ms, 0) if self._history.newest_ms else 0
        self._group = SleepingGroup(rules or WakeRules(), now_ms() - age_ms)
        for (owner, queue), offset in self._history.committed.items():
            if not owner:
                self._group.committed(queue, offset, now_ms())
        self._group.has_members(self._members(), now_ms() - age_ms)
        self._waiting: dict[Queue, int] = {}
        """Queue -> offset of the pull that waits for its messages."""
        self._paused: dict[Queue, int] = {}
        """Queue -> when its next pull may be sent."""
        self._doubtful: set[Queue] = set()
        """Queues whose end must be queried."""
        self._query_ms = 0
        """When the ends may be queried again (ms)."""
        self._is_stale = True
        """Whether pulls may have to be sent or cancelled. With thousands of queues, checking all of them takes a
        while."""
        self._workers: list[Worker] = []
        self._refresh_ms = now_ms() + REFRESH_MS
        self._refusals: set[str] = set()
        self._was_held = False
        self._heard = time.monotonic()

    def run(self, stop: threading.Event) -> None:
        """Watch the group until `stop` is set; then stop the workers and wait until they have ended.

        Raises:
            WakerollError: the coordinator removed this process from the group of the wakers.
            InvalidUsage: the group has become a broadcasting group.
        """
        try:
            while not stop.is_set():
                self._round()
        finally:
            self._close()

    def _round(self) -> None:
        for decision in self._log.wait(SLICE_S):
            self._learn(decision)
            self._is_stale, self._heard = True, time.monotonic()
        if self._log.was_replaced():
            self._history.forget_members()
            self._group.has_members(None, now_ms())
            self._is_stale = True
        self._refuse_broadcasting()
        self._look_after_workers()
        self._refresh()
        is_held = self._lease.is_held()
        if is_held != self._was_held:
            self._was_held = is_held
            log.info("%s: %s", self._group_id, "this process has the lease" if is_held else "another process may wake")
        if is_held:
            wanted = self._group.wanted(now_ms())
            if wanted is not None and self._size().members > self._group.running:
                # Live members do not read messages that do not exist: their announcement may have been wrong.
                self._look_at(wanted.queues)
                wanted = self._group.wanted(now_ms())
            if wanted is not None:
                self._wake(wanted)
            self._watch()
        else:
            self._watch_nothing()
        # A worker that has not joined yet is known to this process only.
        if not self._workers or self._history.members:
            self._lease.give_back()

    # --- the group ---

    def _learn(self, decision: Said) -> None:
        """Process one more decision about the group."""
        history, group, now = self._history, self._group, now_ms()
        history.learn(decision)
        match decision:
            case Offset(mode="clustering"):
                group.committed(decision.queue, None if decision.deleted else decision.offset, now)
            case Membership(change="expired"):
                group.member_expired()
            case Membership(change="forgotten"):
                group.forgotten()
                group.is_paused = False
            case Membership(change="paused" | "resumed"):
                group.is_paused = decision.change == "paused"
            case _:
                pass
        group.has_members(self._members(), now)

    def _members(self) -> int | None:
        members = self._history.members
        return None if members is None else len(members)

    def _refuse_broadcasting(self) -> None:
        if self._history.mode == "broadcasting":
            raise InvalidUsage(
                f"group {self._group_id!r} is broadcasting: each of its clients must read every message, so its "
                "workers must always run; wake a clustering group"
            )

    def _known_topics(self) -> list[str]:
        found = list(self._named) or [*self._history.topics, *self._matched()]
        if not found:
            raise InvalidUsage(
                f"group {self._group_id!r} has no committed offsets; is the name correct? If it has never run, name "
                "its topics with --topic"
            )
        retries = retry_topic_of(self._group_id)
        return [*dict.fromkeys([name for name in found if name != retries]), retries]

    def _matched(self) -> list[str]:
        """Return the topics of the cluster that match a pattern of the members, or of the last ones."""
        patterns = self._history.patterns
        if not patterns:
            return []
        topics = self._consumer.list_topics(timeout=self._timeout).topics
        allowed = sorted(topic for topic in topics if may_match(topic, self._connection.topics))
        return sorted({topic for pattern in patterns for topic in self._matching(pattern, allowed)})

    def _look_up(self) -> list[Queue]:
        return [queue for topic in self._topics for queue in self._positions.queues(topic)]

    def _lease_topic(self) -> str:
        """Return the topic whose first queue is the lease: the same for all wakers with the same topics."""
        # A deleted topic has no queue that a waker could own.
        return min({queue.topic for queue in self._queues} - {retry_topic_of(self._group_id)}, default=self._topics[0])

    def _refresh(self) -> None:
        """Query the queues, and the partition of the group's decisions, when that is due: both may change."""
        if now_ms() < self._refresh_ms:
            return
        self._refresh_ms = now_ms() + REFRESH_MS
        try:
            if self._history.topics or self._history.patterns:  # a group that is forgotten keeps its topics here
                self._topics = self._known_topics()
            self._queues, self._is_stale = self._look_up(), True
            self._group.keep_only(self._queues)
            self._lease.move(self._lease_topic())
            self._log.follow_the_group()
        except (KafkaException, NotReachable) as problem:
            log.debug("the queues of %s are not known: %s", self._group_id, problem)

    # --- its messages ---

    def _watch(self) -> None:
        """Wait for messages of all queues that have none, and note those that have."""
        now = now_ms()
        for ended in self._puller.take_ended():
            self._waiting.pop(ended.pull.queue, None)
            self._hear(ended, now)
            self._is_stale = True
        self._look_at_doubtful()
        for queue in [queue for queue, due_ms in self._paused.items() if due_ms <= now]:
            del self._paused[queue]
            self._is_stale = True
        if not self._is_stale:
            return
        self._is_stale = False
        asleep = self._group.asleep(self._queues)
        for queue, offset in list(self._waiting.items()):
            if asleep.get(queue) != offset:
                self._puller.cancel(queue)
                del self._waiting[queue]
        for queue, offset in asleep.items():
            if queue not in self._waiting and queue not in self._paused:
                self._puller.begin(queue, offset, HOLD_MS, Subscription(topic=queue.topic))
                self._waiting[queue] = offset

    def _watch_nothing(self) -> None:
        for queue in self._waiting:
            self._puller.cancel(queue)
        self._waiting.clear()
        self._is_stale = True

    def _hear(self, ended: PullEnded, now: int) -> None:
        queue = ended.pull.queue
        if ended.reason == "refused" and ended.rule not in self._refusals:
            self._refusals.add(ended.rule)
            log.warning("the coordinator rejected a pull of %s (%s): %s", queue, ended.rule, ended.detail)
        if ended.reason == "arrival" and ended.next_offset > ended.pull.from_offset:
            self._grown(queue, ended.next_offset, now)
            return
        # The coordinator may not know the end of the queue, for example because nobody has pulled it yet, or because it
        # was recreated.
        self._doubtful.add(queue)
        if ended.reason != "timeout":
            self._paused[queue] = now + RETRY_MS

    def _grown(self, queue: Queue, end: int, now: int) -> None:
        self._group.grown(queue, end, self._delay_ms(queue), now)

    def _delay_ms(self, queue: Queue) -> int:
        """Return how long a message waits: the retry topic has a queue for each delay."""
        return delay_ms_of(queue.queue_id) if queue.topic == retry_topic_of(self._group_id) else 0

    def _look_at_doubtful(self) -> None:
        """Query Kafka for the first offset and the end of queues whose pulls got no useful answer."""
        if not self._doubtful or now_ms() < self._query_ms:
            return
        doubtful, self._doubtful = sorted(self._doubtful & set(self._queues)), set()
        # A partition without a leader must not hide the messages of the others.
        self._doubtful.update(set(doubtful) - self._look_at(doubtful))
        self._query_ms = now_ms() + QUERY_MS

    def _look_at(self, queues: Iterable[Queue]) -> set[Queue]:
        """Query Kafka for the first offset and the end of queues; leave out queues without an answer."""
        try:
            found = self._positions.ranges(queues)
        except KafkaException as problem:
            log.debug("the ends of the queues of %s are not known: %s", self._group_id, problem)
            return set()
        for queue, (first, end) in found.items():
            self._group.found(queue, first, end, self._delay_ms(queue), now_ms())
        self._is_stale = True
        return set(found)

    # --- its workers ---

    def _wake(self, wanted: Wanted) -> None:
        queues = wanted.queues
        reason = f"messages in {names_of(queues)}" if queues else "long without members"
        try:
            worker = self._starter.start(self._group_id, queues, self._size())
        except OSError as problem:
            self._group.started()
            pause_ms = self._group.ended(succeeded=False, now_ms=now_ms())
            log.error("%s: no worker could be started (%s); again in %g s", self._group_id, problem, pause_ms / 1_000)
            return
        self._workers.append(worker)
        self._group.started()
        log.info("%s: started %s (%s)", self._group_id, worker, reason)

    def _look_after_workers(self) -> None:
        for worker in list(self._workers):
            succeeded = worker.result(self._size())
            if succeeded is None:
                continue
            self._workers.remove(worker)
            self._is_stale = True
            pause_ms = self._group.ended(succeeded=succeeded, now_ms=now_ms())
            outcome = "ended" if succeeded else f"failed; no other one is started for {pause_ms / 1_000:g} s"
            log.log(logging.INFO if succeeded else logging.WARNING, "%s: %s %s", self._group_id, worker, outcome)

    def _size(self) -> GroupSize:
        return GroupSize(self._members() or 0, self._history.joins, self._heard)

    def _close(self) -> None:
        for worker in self._workers:
            worker.stop()
        for worker in self._workers:
            worker.wait()
        self._watch_nothing()
        self._lease.close(LEAVE_S)  # its thread passes answers to the puller
        self._puller.close(LEAVE_S)
        self._log.close()
        self._consumer.close()
