"""A world of push consumers made from one seed: what they do to each other, and what must hold whatever happens."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from random import Random
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch
from zlib import crc32

from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, KafkaError, Message

from tests.support.simulation.push.push_coordinator import (
    GROUP,
    ORDERS,
    RETRIES,
    SimulatedCoordinator,
    SimulatedInbox,
    SimulatedOutbox,
    is_in,
)
from tests.support.simulation.push.scheduled_threads import NEVER_S, Scheduler
from tests.support.simulation.push.simulated_kafka import SendFaults, SimulatedConsumer, SimulatedProducer
from wakeroll import DeadLetter, Retry, heartbeat_thread, origin_of, pace, queue_starts, reader, sliced_reader
from wakeroll.connection import Topics
from wakeroll.heartbeat_thread import Control
from wakeroll.message_selection import MessageSelection
from wakeroll.origin import wait_s_of
from wakeroll.push import dispatch, failure_handling, push_loop, queue_work, refused_letters, send_back, workers
from wakeroll.push.failure_handling import RetryRules
from wakeroll.push.limits import PushLimits
from wakeroll.push.push_loop import PushLoop
from wakeroll.push.send_back import SendBack
from wakeroll.queue_starts import QueueStarts
from wakeroll.reader import Reader
from wakeroll.slice_by import slice_key
from wakeroll.sliced_reader import SlicedReader
from wakeroll_model import feature_levels
from wakeroll_model.client import Client, Preferences
from wakeroll_model.events import AnyEvent, Commit, Configure, Level, Subscription
from wakeroll_model.queue import Queue
from wakeroll_model.retry_topics import DELAYS_S, dead_letter_topic_of

REVOKE_TIMEOUT_S = 10.0
SESSION_TIMEOUT_S = 20.0
SLACK_S = 3.0
"""How much longer than its timeout `run` may take to return."""
CALM_S = 3_600.0
"""How long the messages may take to end when no faults happen any more."""
SLICE_S = 0.25
WALL_MS = 1_700_000_000_000

REFUSALS = (
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.MSG_SIZE_TOO_LARGE,
    KafkaError.INVALID_RECORD,
)

Place = tuple[int, int]
"""Queue number and offset of a message in its own topic."""


def place_of(message: Message) -> Place:
    """Return where a message was first delivered from."""
    origin = origin_of(message)
    return origin.partition, origin.offset


class Crash(BaseException):
    """An exception of a handler that ends `run`."""


class DirectCalls:
    """Stands in for `CallThread`: the scheduler interrupts no thread with an exception."""

    def __init__(self, _name: str) -> None:
        pass

    def ask(self, call: Callable[[], Any]) -> Any:
        return call()

    do = ask

    def end(self) -> None:
        pass

    def join(self, timeout: float) -> None:
        pass


@dataclass
class Plan:
    """What a seed has drawn."""

    seed: int
    orderly: bool
    rough: bool
    """Whether clients die, freeze and lose sends; otherwise nothing may be repeated."""
    queues: int
    messages: int
    keys: int
    limits: PushLimits
    rules: RetryRules
    clients: int
    steps: int
    switches_at_locks: float
    fails: float
    """Part of the attempts that fail."""
    stop_timeout_s: float
    poison: float = 0.0
    """Part of the messages that no call can process: each that has one of them raises."""
    slices: int = 1
    """Number of slices of each queue at the beginning. If it is not 1, it changes in the history."""
    kept: int = 0
    """Maximum number of messages of a slice that its reader keeps."""

    @classmethod
    def draw(cls, seed: int) -> "Plan":
        rng = Random(seed)
        orderly = rng.random() < 0.35
        prefetch = rng.choice([4, 20, 100])
        plan = cls(
            seed=seed,
            orderly=orderly,
            rough=rng.random() < 0.65,
            queues=rng.choice([1, 2, 4]),
            messages=rng.choice([10, 30, 60]),
            keys=rng.choice([0, 1, 3, 7]),
            limits=PushLimits(rng.choice([1, 2, 4]), rng.choice([1, 3, 8]), prefetch, rng.choice([20, 10_000])),
            rules=RetryRules(
                in_place=orderly,
                max_retries=rng.choice([0, 1, 2, 3]),
                handle_timeout=rng.choice([8.0, 60.0]),
                is_orderly=orderly,
            ),
            clients=rng.choice([1, 2, 3]),
            steps=rng.choice([4, 8, 16]),
            switches_at_locks=rng.choice([0.0, 0.05, 0.3]),
            fails=rng.choice([0.0, 0.1, 0.4]),
            stop_timeout_s=rng.choice([4.0, 40.0]),
        )
        # Later additions are drawn last, so that an earlier seed still gives the same world.
        plan.poison = rng.choice([0.0, 0.05, 0.25])
        if not orderly and rng.random() < 0.2:
            plan.rules = replace(plan.rules, in_place=True)
            plan.rough = True
        # 45 and 100 s are none of the levels: such a message waits in several queues, one after the other.
        plan.rules = replace(plan.rules, retry_delays=rng.choice([None, None, (2,), (45, 3), (7, 100, 11)]))
        plan.slices = rng.choice([1, 1, 2, 4, 8])
        plan.kept = rng.choice([0, 5, 1_000])
        return plan


@dataclass(eq=False)
class Call:
    """A call of a handler."""

    client: "SimulatedClient"
    places: list[Place]
    lanes: set[tuple[Queue, bytes | None]]
    since_s: float
    is_excused: bool = False
    """Whether another call may have its messages: its client died, froze or lost its session, or it takes too long."""


class PushWorld(SimulatedCoordinator):
    """The coordinator, the topics, the clients, and the checks."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.rng = Random(f"{plan.seed} world")
        self.scheduler = Scheduler(Random(f"{plan.seed} threads"), plan.switches_at_locks)
        self.threads, self.time = self.scheduler.modules()
        self.clock: Any = SimpleNamespace(now_ms=self.now_ms, epoch_ms=self.wall_ms, on_round=lambda _: None)
        self.clients: list[SimulatedClient] = []
        self.happened: Counter[str] = Counter()
        self.wall_shift_s = 0.0
        self.is_shifted = False
        """Whether this machine's clock was ever wrong; a message may be due earlier then."""
        self.processed: Counter[Place] = Counter()
        self.dead_places: Counter[Place] = Counter()
        self.stored: Counter[tuple[Place, int, int]] = Counter()
        """Place, attempt, and seconds to wait afterwards -> how often it is in the retry topic."""
        self.furthest: dict[Place, tuple[int, int]] = {}
        """Place -> its latest attempt in the retry topic, and the negative seconds to wait after its queue there."""
        self.due_s: dict[tuple[Place, int], float] = {}
        """Place and attempt -> when that may begin at the earliest, if nothing is repeated."""
        self.failures: Counter[Place] = Counter()
        """How often each message failed by itself: alone in a call, or named by its handler."""
        self.hopeless: set[Place] = set()
        """Messages that a handler called dead letters."""
        self.calls: list[Call] = []
        self.faults: list[AssertionError] = []
        self.is_calm = False
        self.repeats_allowed = plan.rough

    def run(self) -> None:
        """Live through the history."""
        with ExitStack() as stack:
            for module in (dispatch, failure_handling, send_back, workers, heartbeat_thread):
                stack.enter_context(patch.object(module, "threading", self.threads))
            stack.enter_context(patch.object(heartbeat_thread, "CallThread", DirectCalls))
            stack.enter_context(patch.object(heartbeat_thread, "_members", set()))
            stack.enter_context(patch.object(heartbeat_thread, "Flag", self.threads.Event))
            for module in (dispatch, refused_letters, send_back, workers, heartbeat_thread, queue_starts, pace, reader):
                stack.enter_context(patch.object(module, "time", self.time))
            for module in (push_loop, failure_handling, heartbeat_thread):
                stack.enter_context(patch.object(module, "now_ms", self.now_ms))
            stack.enter_context(patch.object(pace, "SLICE_S", SLICE_S))
            stack.enter_context(patch.object(sliced_reader, "MOST_KEPT", self.plan.kept))
            # The simulated topics come back by themselves.
            stack.enter_context(patch.object(refused_letters, "ensure_failure_topics", lambda *_: None))
            stack.enter_context(patch.object(refused_letters, "max_message_bytes", lambda *_: None))
            stack.enter_context(patch.object(queue_work, "hash", crc32, create=True))  # the same in every process
            self.scheduler.run(self._history)

    def now_ms(self) -> int:
        return int(self.scheduler.now_s * 1_000)

    def wall_ms(self) -> int:
        return WALL_MS + int((self.scheduler.now_s + self.wall_shift_s) * 1_000)

    # --- the history ---

    def _history(self) -> None:
        plan, rng = self.plan, self.rng
        super().__init__(plan.queues, self.scheduler)
        self.append(
            Configure(
                group_id=GROUP,
                heartbeat_ms=3_000,
                session_timeout_ms=int(SESSION_TIMEOUT_S * 1_000),
                revoke_timeout_ms=int(REVOKE_TIMEOUT_S * 1_000),
                rebalance_interval_ms=1_000,
                settle_ms=0,
            )
        )
        if plan.slices > 1:
            self.append(Level(level=feature_levels.NEWEST))
            self._cut_into(plan.slices)
        for number in range(plan.queues):
            self.produce(number, plan.messages, plan.keys)
        for _ in range(plan.clients):
            self._join()
        for _ in range(plan.steps):
            self.scheduler.sleep(rng.choice([0.0, 0.3, 2.0, 12.0]))
            self._step()
        self._calm_down()
        if not any(client.is_well for client in self.clients):
            self._join()
        until_s = self.scheduler.now_s + CALM_S
        while not self._is_complete() and not self.faults:
            assert self.scheduler.now_s < until_s, f"these messages do not end: {self._left()}"
            for client in self.clients:
                client.reader.resume(client.reader.queues)
            self.scheduler.sleep(1.0)
        for client in self.clients:
            client.stop_and_leave()
        for fault in self.faults:
            raise fault
        assert not self.scheduler.problems, f"a thread ended: {self.scheduler.problems[0]!r}"
        self._check_the_end()

    def _calm_down(self) -> None:
        self.is_calm = True
        for client in self.clients:
            client.send_faults.__init__()  # type: ignore[misc]
            client.cut_until_s, client.crashes, client.seeks_back = 0.0, False, 0

    def _step(self) -> None:
        rng = self.rng
        calm = [self._join, self._leave, self._stop_and_run, self._pause, self._resume, self._crash_handler]
        rough = [self._kill, self._freeze, self._cut, self._break_sends, self._refuse, self._seek, self._hang]
        if self.plan.slices > 1:
            calm += [self._change_slices] * 3
        step = rng.choice(calm + rough if self.plan.rough else calm)
        step()
        if rng.random() < 0.2:
            self.is_shifted = True
            self.wall_shift_s += rng.choice([-7_200, -5, 5, 7_200])

    def _change_slices(self) -> None:
        self.happened["other number of slices"] += 1
        self._cut_into(self.rng.choice([1, 2, 4, 8]))

    def _cut_into(self, slices: int) -> None:
        self.append(Configure(group_id=GROUP, slices={ORDERS: slices}))

    def _join(self) -> None:
        if sum(client.is_well for client in self.clients) < 4:
            self.happened["join"] += 1
            self.clients.append(SimulatedClient(self, f"c{len(self.clients)}"))

    def _leave(self) -> None:
        if sum(client.is_well for client in self.clients) > 1:
            self.happened["leave"] += 1
            self.rng.choice([client for client in self.clients if client.is_well]).stop_and_leave()

    def _any(self) -> "SimulatedClient | None":
        well = [client for client in self.clients if client.is_well]
        return self.rng.choice(well) if well else None

    def _stop_and_run(self) -> None:
        if client := self._any():
            self.happened["stop"] += 1
            client.stop()

    def _pause(self) -> None:
        if (client := self._any()) and (queues := client.reader.queues):
            self.happened["pause"] += 1
            client.reader.pause([self.rng.choice(queues)])

    def _resume(self) -> None:
        if client := self._any():
            self.happened["resume"] += 1
            client.reader.resume(client.reader.queues)

    def _crash_handler(self) -> None:
        if client := self._any():
            self.happened["crash of a handler"] += 1
            client.crashes = True
            # Messages after those of the call may be processed, and are delivered again with them.
            self.repeats_allowed |= not self.plan.orderly

    def _kill(self) -> None:
        if client := self._any():
            self.happened["kill"] += 1
            client.die()

    def _freeze(self) -> None:
        if client := self._any():
            self.happened["freeze"] += 1
            for call in self.calls:
                if call.client is client:
                    self.note_failed_call(call.places)  # it may be overdue when the client goes on
            client.freeze(self.rng.choice([1.0, 8.0, 30.0]))

    def _cut(self) -> None:
        if client := self._any():
            self.happened["cut off"] += 1
            client.is_excused = True
            client.cut_until_s = self.scheduler.now_s + self.rng.choice([1.0, 10.0, 30.0])

    def _break_sends(self) -> None:
        if client := self._any():
            self.happened["failed sends"] += 1
            faults = client.send_faults
            faults.full, faults.times_out, faults.fatal = 0.2, 0.2, self.rng.choice([0.0, 0.1])
            faults.longest_s = self.rng.choice([0.05, 2.0, 40.0])

    def _refuse(self) -> None:
        """Let the topics for failed messages be deleted, deny them, or let them accept no message."""
        if client := self._any():
            self.happened["refused messages"] += 1
            faults = client.send_faults
            faults.refusal = self.rng.choice(REFUSALS)
            faults.refused_until_s = self.scheduler.now_s + self.rng.choice([5.0, 60.0])

    def _seek(self) -> None:
        if client := self._any():
            self.happened["seek"] += 1
            client.seeks_back = self.rng.randrange(1, 10)

    def _hang(self) -> None:
        if client := self._any():
            self.happened["call that does not return"] += 1
            client.hangs_s = self.rng.choice([6.0, 15.0, 30.0 if self.plan.rules.in_place else NEVER_S])

    # --- the topics ---

    def store_record(self, topic: str, partition: int, value: Any, key: Any, headers: Any, **_: Any) -> None:
        queue = Queue(topic, "", partition)
        message = Message(
            topic=topic,
            partition=partition,
            offset=len(self.messages[queue]),
            key=key,
            value=value,
            headers=headers,
            timestamp=(TIMESTAMP_LOG_APPEND_TIME, self.wall_ms()),
        )
        self.messages[queue].append(message)
        origin = origin_of(message)
        place = origin.partition, origin.offset
        most = self.plan.rules.max_retries
        assert most is not None
        failures = self.failures[place]
        if topic == dead_letter_topic_of(GROUP):
            assert place in self.hopeless or failures > most, f"{place} is dead, and failed {failures} times"
            assert place in self.hopeless or origin.attempt == most + 1, f"{place} is dead at attempt {origin.attempt}"
            self.dead_places[place] += 1
        else:
            assert 2 <= origin.attempt <= most + 1, f"attempt {origin.attempt} of {place}"
            assert origin.attempt - 1 <= failures, f"{place} failed {failures} times; attempt {origin.attempt} is next"
            wait_s = wait_s_of(message)
            self.due_s.setdefault((place, origin.attempt), self.scheduler.now_s + DELAYS_S[partition] + wait_s)
            self.stored[place, origin.attempt, wait_s] += 1
            self.furthest[place] = max((origin.attempt, -wait_s), self.furthest.get(place, (0, 0)))

    def append(self, event: AnyEvent) -> tuple[int, int]:
        if isinstance(event, Commit):
            for entry in event.offsets:
                for message in self.messages_of(entry.queue):
                    assert (message.offset() or 0) >= entry.offset or self._is_ended(message), (
                        f"{event.client_id} commits {entry.queue} up to {entry.offset}, "
                        f"and {message.offset()} is not processed"
                    )
        return super().append(event)

    def _is_ended(self, message: Message) -> bool:
        """Return whether a message of any topic needs no further attempt from where it is."""
        origin = origin_of(message)
        place = place_of(message)
        return (
            place in self.processed
            or place in self.dead_places
            or self.furthest.get(place, (0, 0)) > (origin.attempt, -wait_s_of(message))
        )

    def _left(self) -> list[Place]:
        return [
            (number, at)
            for number in range(self.plan.queues)
            for at in range(self.plan.messages)
            if (number, at) not in self.processed and (number, at) not in self.dead_places
        ]

    def _is_complete(self) -> bool:
        return not self._left()

    # --- the checks ---

    @contextmanager
    def judging(self) -> Iterator[None]:
        """Note a failed check of a handler: the SDK would take its exception for one of the application."""
        try:
            yield
        except AssertionError as fault:
            self.faults.append(fault)
            raise

    def begin(self, client: "SimulatedClient", messages: list[Message]) -> Call:
        """Note that a call begins."""
        assert messages, "a call without messages"
        [queue] = {Queue(message.topic() or "", "", message.partition() or 0) for message in messages}
        offsets = [message.offset() or 0 for message in messages]
        assert offsets == sorted(set(offsets)), f"a call with {offsets}"
        orderly = self.plan.orderly
        lanes = {lane for message in messages if (lane := self._lane_of(queue, message)) is not None}
        now_s = self.scheduler.now_s
        for other in self.calls:
            excused = other.is_excused or other.client.is_excused or client.is_excused
            excused |= not orderly and now_s - other.since_s >= min(
                self.plan.rules.handle_timeout, 0.9 * REVOKE_TIMEOUT_S
            )
            assert excused or not other.lanes & lanes, (
                f"two calls at once: {client.client_id} and {other.client.client_id}"
            )
        group = self.shard.group(GROUP)
        assert group is not None
        for owned, owner in group.owners.items():
            is_mine = client.is_excused or owner == client.client_id or owned.whole != queue
            assert is_mine or not any(is_in(message, owned) for message in messages), (
                f"{client.client_id} begins a call of {owned}, of which {owner} is the owner"
            )
        for message in messages:
            self._check_order(queue, message, messages)
            if queue.topic == RETRIES and not self.is_shifted and not self.repeats_allowed:
                due_s = self.due_s[place_of(message), origin_of(message).attempt]
                assert self.scheduler.now_s > due_s - 0.01, f"{place_of(message)} comes {due_s - now_s:.2f} s too early"
                assert wait_s_of(message) == 0, f"{place_of(message)} is handled, and has to wait"
        call = Call(client, [place_of(message) for message in messages], lanes, now_s)
        self.calls.append(call)
        return call

    def _lane_of(self, queue: Queue, message: Message) -> tuple[Queue, bytes | None] | None:
        """Return what has one call at a time: an orderly queue or, of slices of any number, a key; None: nothing."""
        if self.plan.orderly and (self.plan.slices == 1 or queue.topic != ORDERS):
            return queue, None
        key = message.key()
        return None if key is None else (queue, key)  # type: ignore[return-value]

    def _check_order(self, queue: Queue, message: Message, batch: list[Message]) -> None:
        """Check that all messages before it in its lane have ended."""
        lane = self._lane_of(queue, message)
        if queue.topic != ORDERS or lane is None:
            return
        first = batch[0].offset() or 0
        for earlier in self.messages[queue][: message.offset() or 0]:
            if self._lane_of(queue, earlier) == lane:
                is_with_it = any(one is earlier for one in batch)
                place = place_of(earlier)
                # It may wait until its topic takes it, and nothing else waits for that.
                is_held = not self.plan.rules.in_place and (self.failures[place] > 0 or place in self.hopeless)
                assert is_with_it or is_held or self._is_ended(earlier), (
                    f"{queue} {message.offset()} (of a call from {first}) begins before {earlier.offset()} has ended"
                )

    def is_poison(self, place: Place) -> bool:
        """Return whether no call can process a message."""
        return Random(f"{self.plan.seed} {place}").random() < self.plan.poison

    def note_failed_call(self, places: list[Place]) -> None:
        """Note that a call failed, and that nobody knows by which of its messages, unless it has only one."""
        if len(places) == 1:
            self.failures[places[0]] += 1

    def note_failed(self, outcomes: list[Retry | DeadLetter]) -> None:
        """Note what a handler returns; in order, what stands behind a message that is retried does not count."""
        for outcome in outcomes:
            assert outcome.messages is not None
            if isinstance(outcome, DeadLetter):
                self.hopeless.update(map(place_of, outcome.messages))
            elif self.plan.orderly:
                self.failures[place_of(outcome.messages[0])] += 1
                return
            else:
                self.failures.update(map(place_of, outcome.messages))

    def note_processed(self, place: Place) -> None:
        self.processed[place] += 1
        assert self.repeats_allowed or self.processed[place] == 1, f"{place} is processed twice"
        assert self.repeats_allowed or place not in self.dead_places, f"{place} is dead, and then processed"

    def _check_the_end(self) -> None:
        if not self.repeats_allowed:
            assert set(self.dead_places.values()) <= {1}, f"dead letters: {self.dead_places.most_common(3)}"
            assert set(self.stored.values()) <= {1}, f"stored for a retry: {self.stored.most_common(3)}"
            assert not self.dead_places.keys() & self.processed.keys()
            assert set(self.offsets().values()) == {self.plan.messages}, f"committed: {self.offsets()}"
            assert {queue.queue_id for queue in self.offsets()} == set(range(self.plan.queues))
        left = [
            thread.name
            for thread in self.scheduler.threads
            if not thread.is_finished
            and any(thread.client == client.client_id for client in self.clients if client.has_left)
        ]
        assert len(left) <= len(self.calls), f"threads are left: {left}"


class SimulatedClient:
    """A process with a consumer that runs, stops and runs again, until it leaves or dies."""

    def __init__(self, world: PushWorld, client_id: str) -> None:
        self.client_id = client_id
        self.is_well = True
        self.has_left = False
        self.is_excused = False
        """Whether its calls may overlap with those of others: it froze, or was cut off."""
        self.cut_until_s = 0.0
        self.crashes = False
        self.hangs_s = 0.0
        self.seeks_back = 0
        self.send_faults = SendFaults()
        self._world = world
        self._rng = Random(f"{world.plan.seed} {client_id}")
        driver, world.scheduler.current = world.scheduler.current, SimpleNamespace(client=client_id, frozen_until_s=0.0)  # type: ignore[assignment]
        topics = [ORDERS] if world.plan.rules.in_place else [ORDERS, RETRIES]
        subscriptions = [Subscription(topic=topic) for topic in topics]
        preferences = Preferences(
            subscriptions=subscriptions, consume_from="first", orderly=world.plan.orderly, strategy="SPREAD"
        )
        client = Client(GROUP, client_id, preferences, commit_interval_ms=self._rng.choice([100, 2_000]), slice_by="")

        def consumer(**_: Any) -> SimulatedConsumer:
            return SimulatedConsumer(world.scheduler, world.messages, self._rng)

        connection: Any = SimpleNamespace(
            topics=Topics(),
            user="a client without a login",
            consumer=consumer,
            message_consumer=consumer,
            producer=lambda **_: SimulatedProducer(world.scheduler, self._store, self._rng, self.send_faults),
        )
        self.reader = SlicedReader(Reader(connection), slice_key(None))
        self._connection = connection
        outbox = SimulatedOutbox(world, lambda: self.cut_until_s)
        inbox: Any = SimulatedInbox(world, client_id)
        self._control = Control(client, lambda: inbox, outbox, lambda _: None)  # type: ignore[arg-type]
        self._selection = MessageSelection(self._control, self.reader)
        self._starts = QueueStarts(self._control, self.reader, self._assigned)
        self._stopping = self._leaving = False
        self._stopped_s = NEVER_S
        self._loop: PushLoop | None = None
        world.scheduler.current = driver
        # The control thread is started by a thread of this client, so that it belongs to it.
        self._thread = world.threads.Thread(target=self._run, name=f"{client_id}-run", daemon=True)
        self._thread.client = client_id
        self._thread.start()

    def stop(self) -> None:
        """Let `run` return; it is called again."""
        self._stopping = True
        self._stopped_s = min(self._stopped_s, self._world.scheduler.now_s)

    def stop_and_leave(self) -> None:
        if not self.is_well:
            return
        self._leaving = True
        self.is_well = False
        self.stop()
        scheduler = self._world.scheduler
        wanted_s = max(scheduler.now_s, *(thread.frozen_until_s for thread in scheduler.threads))
        self._thread.join()
        assert scheduler.now_s < wanted_s + self._world.plan.stop_timeout_s + SLACK_S + 3 * SLICE_S, (
            f"run() of {self.client_id} returned after {scheduler.now_s - wanted_s:.1f} s"
        )
        self.has_left = True

    def die(self) -> None:
        """End without a word, at once."""
        self.is_well = False
        self.is_excused = True
        for thread in self._world.scheduler.threads:
            if thread.client == self.client_id:
                thread.frozen_until_s = 1e12

    def freeze(self, seconds: float) -> None:
        """Stop all threads for a while."""
        self.is_excused = True
        for thread in self._world.scheduler.threads:
            if thread.client == self.client_id:
                thread.frozen_until_s = self._world.scheduler.now_s + seconds

    def _run(self) -> None:
        world = self._world
        self._control.join()
        while True:
            plan = world.plan
            self._loop = PushLoop(
                self._control,
                self.reader,
                self._starts,
                self._selection,
                self._handle,
                plan.limits,
                plan.rules,
                SendBack(self._connection, GROUP, self._end),
                orderly=plan.orderly,
                on_ended=lambda *_: None,
                name=self.client_id,
                clock=self._world.clock,
            )
            with suppress(Crash):
                self._loop.run(self._goes_on, lambda: self._world.plan.stop_timeout_s)
            # Calls that took longer than the stop timeout: their messages are delivered again.
            world.repeats_allowed |= world.scheduler.now_s >= self._stopped_s + plan.stop_timeout_s
            self._stopping, self._stopped_s = False, NEVER_S
            for call in world.calls:
                call.is_excused |= call.client is self
            if self._leaving:
                break
        self._control.leave(1.0)

    def _end(self, problem: BaseException) -> None:
        if self._loop is not None:
            self._loop.end(problem)

    def _goes_on(self) -> bool:
        assert self._loop is not None
        limits = self._world.plan.limits
        for work in self._loop._work.values():
            assert 0 <= work.messages <= max(limits.prefetch, 1), f"{work.messages} messages are read ahead"
            assert work.bytes >= 0
        return not self._stopping and not self._leaving

    def _assigned(self, queues: list[Queue]) -> None:
        if self.seeks_back:
            for queue in queues:
                self.reader.seek(queue, max(self.reader.position(queue) - self.seeks_back, 0))
            self.seeks_back = 0

    def _store(self, **record: Any) -> None:
        self._world.store_record(**record)

    # --- the handler ---

    def _handle(self, messages: list[Message]) -> object:
        world, rng, plan = self._world, self._rng, self._world.plan
        batch = list(messages)
        with world.judging():
            call = world.begin(self, batch)
        try:
            world.scheduler.sleep(rng.choice([0.0, 0.01, 0.2, 1.0]))
            if self.hangs_s and not world.is_calm:
                seconds, self.hangs_s = self.hangs_s, 0.0
                world.note_failed_call(call.places)
                world.scheduler.sleep(seconds)
            if self.crashes:
                self.crashes = False
                raise Crash
            outcomes: list[Retry | DeadLetter] = []
            will = rng.random()
            if any(map(world.is_poison, call.places)) or (not world.is_calm and will < plan.fails / 3):
                world.note_failed_call(call.places)
                raise LookupError("no such order")
            for message in batch:
                messages.pop(0)  # an application may take its list apart
                place = place_of(message)
                draw = rng.random() if not world.is_calm else 1.0
                if draw < plan.fails / 2 and plan.orderly and not world.repeats_allowed:
                    # Those after it would come again anyway.
                    outcomes.append(Retry(rng.choice([0, 1, 2]), [message, *messages], "no such order"))
                    break
                if draw < plan.fails / 2:
                    outcomes.append(Retry(rng.choice([0, 1, 2]), [message], "no such order"))
                elif draw < plan.fails * 0.6:
                    outcomes.append(DeadLetter([message], "hopeless"))
                else:
                    with world.judging():
                        world.note_processed(place)
            world.note_failed(outcomes)
            return outcomes or None
        finally:
            if call in world.calls:
                world.calls.remove(call)
