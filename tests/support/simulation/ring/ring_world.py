"""A world of the ring, made from one seed: what its processes do to each other, and what must hold whatever happens."""

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from random import Random
from typing import Any, cast

from tests.support.simulation.ring.ring_coordinator import METADATA_MS, RingCoordinator, RingObserver
from tests.support.simulation.ring.ring_kafka import Network, RingAdmin, RingConsumer, RingLog, RingProducer
from tests.support.simulation.ring.ring_plan import GroupPlan, RingPlan
from tests.support.simulation.ring.ring_processes import (
    CLOSE_S,
    AsyncProcess,
    ConsumerProcess,
    PollProcess,
    Process,
    ProducerProcess,
    RunProcess,
)
from tests.support.simulation.ring.ring_steps import STEPS, subscribe
from tests.support.simulation.ring.ring_truth import Finding, GroupTruth, Place, Truth
from tests.support.simulation.ring.ring_watchers import LiveProcess, MirrorProcess
from tests.support.simulation.ring.virtual_modules import VirtualClock, stand_ins
from tests.support.simulation.ring.virtual_threads import Scheduler, VirtualThread
from wakeroll.kafka_clients import KafkaClients, register, unregister
from wakeroll_model.events import Configure
from wakeroll_model.queue import Queue
from wakeroll_model.retry_topics import dead_letter_topic_of, has_failed_messages, retry_topic_of
from wakeroll_model.slices import cut

CALM_S = 1_800.0
"""How long the messages may take to end when no faults happen any more."""
KINDS: dict[str, type[ConsumerProcess]] = {"run": RunProcess, "poll": PollProcess, "async": AsyncProcess}
WATCHERS: dict[str, type[Process]] = {"mirror": MirrorProcess, "live view": LiveProcess}
WATCHED_S = 120.0
"""How long the mirror and the live view may take to know the last decision (s)."""
MOST_MEMBERS = 4
GONE_S = METADATA_MS / 1_000 + 60.0
"""How much longer than a session a member that is gone may stay in its group, after `wakeroll reshard` (s)."""
LONGEST_CALL_S = 90.0
"""How long a call of a handler may take that began before the end (s)."""


class RingWorld:
    """The log, the control plane, the processes, and the truth about them."""

    def __init__(self, plan: RingPlan) -> None:
        """Prepare; `run` lives through the history."""
        self.plan = plan
        self.scheduler = Scheduler(Random(f"{plan.seed} threads"), plan.switches_at_locks)
        self.began_s = self.scheduler.now_s
        self.clock = VirtualClock(self.scheduler)
        self.happened: Counter[str] = Counter()
        self.story: list[str] = []
        self.processes: list[Process] = []
        self.has_begun = False
        """Whether the first members have been started."""
        self.is_calm = False
        self.producing = list(plan.topics)
        """Topics that producers send to."""
        self.modes = {group.group_id: group.mode for group in plan.groups}
        """Mode of the members of a group that join from now on."""
        self._addresses: list[str] = []
        self._numbers: Counter[str] = Counter()
        self.log: RingLog
        self.truth: Truth
        self.coordinator: RingCoordinator
        self.observer: RingObserver

    def run(self) -> "RingWorld":
        """Live through the history.

        Raises:
            Finding: a claim does not hold.
            BaseException: what else ended the world.
        """
        uuids = Random(f"{self.plan.seed} uuids")
        self.scheduler.on_problem = self._ended
        try:
            with _logged(self), stand_ins(self.scheduler, self.clock, uuids):
                self.scheduler.run(self._history)
        finally:
            for address in self._addresses:
                unregister(address)
        return self

    def say(self, text: str) -> None:
        """Add a line to the story."""
        self.story.append(f"{self.scheduler.now_s - self.began_s:9.2f}s  {text}")

    def now_ms(self) -> int:
        """Return the brokers' clock (epoch ms)."""
        return round((1_767_225_600 + self.scheduler.now_s) * 1_000)

    def new_address(self, network: Network) -> str:
        """Return an address by which a process reaches the brokers."""
        address = f"ring-{self.plan.seed}:{len(self._addresses) + 1}"
        self._addresses.append(address)
        self.log.networks[address] = network
        register(
            address,
            KafkaClients(
                cast(Any, partial(RingProducer, self.log, self.now_ms)),
                cast(Any, partial(RingConsumer, self.log, self.now_ms)),
                cast(Any, partial(RingAdmin, self.log, self.now_ms)),
            ),
        )
        return address

    # --- processes ---

    def join(self, group: GroupPlan, rng: Random) -> ConsumerProcess | None:
        """Start one more member of a group, unless it has enough."""
        if len(self.members(group)) >= MOST_MEMBERS:
            return None
        self._numbers[group.group_id] += 1
        name = f"{group.group_id}-{self._numbers[group.group_id]}"
        wanted = group.first
        if self.is_calm or (self.has_begun and Random(f"{self.plan.seed} tags of {name}").random() < 0.5):
            wanted = group.last
        process = KINDS[rng.choice(group.kinds)](self, name, group, wanted)
        self._add_truth_of(group, process)
        self.processes.append(process)
        process.start()
        return process

    def members(self, group: GroupPlan | None = None) -> list[ConsumerProcess]:
        """Return the processes of a group, or of all, that are well."""
        return [
            process
            for process in self.processes
            if isinstance(process, ConsumerProcess) and process.is_well and group in (None, process.group)
        ]

    def produce(self, messages: int) -> None:
        """Start a producer."""
        self._numbers["producer"] += 1
        process = ProducerProcess(self, f"producer-{self._numbers['producer']}", self.producing, messages)
        self.processes.append(process)
        process.start()

    def note_departure(self, process: ConsumerProcess, began_s: float) -> None:
        """Note that a member has left, in a `close` that began then and that nothing has disturbed."""
        network, now_s = process.network, self.scheduler.now_s
        session_s = process.group.session_timeout_ms / 1_000  # until its end, the loss of an earlier event may show
        is_calm = network.is_calm and (not network.calmed_s or network.calmed_s + session_s < began_s)
        ends_s = [end for name in (process.name, "") for _, end in self.truth.cut[name]]
        if is_calm and max([*ends_s, self.coordinator.resharded_s + 1.0]) < began_s - 1.0:
            self._departures.append((process, now_s, self.coordinator.ends()))

    def _check_departures(self) -> None:
        """Judge whether members that have left are gone, once their last events are decided."""
        for departure in list(self._departures):
            process, at_s, ends = departure
            if not self.coordinator.has_decided(ends):
                continue
            self._departures.remove(departure)
            state = self.coordinator.group(process.group.group_id)
            left = None if state is None else state.members.get(process.name)
            if left is None or self.coordinator.resharded_s >= at_s - 2.0:
                continue
            session_s = process.group.session_timeout_ms / 1_000
            ends_s = [end for name in (process.name, "") for _, end in self.truth.cut[name]]
            if (
                left.instance_id == self.truth.newest_instance[process.name]
                or max(ends_s, default=0) < at_s - session_s
            ):
                # Else heartbeats of an instance that had given up came late, and it stays until its session ends.
                self.truth.find("leave forgotten", f"{process.name} has left, and is still a member")

    def do(self, name: str, work: Callable[[str], object]) -> VirtualThread:
        """Let a process of its own do some work, which receives its address."""
        self._numbers[name] += 1
        process = f"{name}-{self._numbers[name]}"
        network = Network(process)
        address = self.new_address(network)
        thread = VirtualThread(self.scheduler, lambda: work(address), process, process=process)
        thread.start()
        self._helpers.append(thread)
        return thread

    # --- the history ---

    def _history(self) -> None:
        plan, scheduler = self.plan, self.scheduler
        self.log = RingLog(scheduler, Random(f"{plan.seed} network"), self.now_ms)
        self.truth = Truth(self.log, is_sliced=plan.is_sliced)
        self.truth.repeats_allowed = plan.is_rough
        self._helpers: list[VirtualThread] = []
        self._departures: list[tuple[ConsumerProcess, float, dict[tuple[str, int], int]]] = []
        self.coordinator = RingCoordinator(self.log, scheduler, self.now_ms, plan.partitions)
        self.coordinator.pace_s = plan.pace_s
        self.coordinator.listeners.append(self.truth.hear)
        for topic, queues in plan.topics.items():
            self.log.create(topic, queues)
        for group in plan.groups:
            self._add(group)
        self.coordinator.start()
        self.observer = RingObserver(self.log, scheduler, self.coordinator, Random(f"{plan.seed} observer"))
        for kind in plan.watchers:
            self.processes.append(WATCHERS[kind](self, kind.replace(" ", "-")))
            self.processes[-1].start()
        self.produce(plan.messages)
        rng = Random(f"{plan.seed} members")
        for group in plan.groups:
            for _ in range(group.members):
                self.join(group, rng)
        self.has_begun = True
        scheduler.sleep(rng.choice([0.0, 2.0, 8.0]))
        for step in plan.faults:
            scheduler.sleep(step.after_s)
            self._raise_a_finding()
            done = STEPS[step.name](self, Random(step.draw))
            if done:
                self.happened[step.name] += 1
                self.say(f"-- {step.name}: {done}")
        self._calm_down()
        self._finish()
        self._await_watchers()
        self._leave()
        self._check_the_end()
        self._raise_a_finding()

    def _add(self, group: GroupPlan) -> None:
        self.coordinator.append(
            self.coordinator.topics.groups,
            group.group_id.encode(),
            Configure(
                group_id=group.group_id,
                heartbeat_ms=group.heartbeat_ms,
                session_timeout_ms=group.session_timeout_ms,
                revoke_timeout_ms=group.revoke_timeout_ms,
                rebalance_interval_ms=1_000,
                settle_ms=0,
            ),
        )

    def _add_truth_of(self, group: GroupPlan, member: ConsumerProcess) -> None:
        """Begin the truth about those who share the messages of a member, if it is the first one."""
        if member.audience not in self.truth.groups:
            self.truth.groups[member.audience] = GroupTruth(
                group_id=group.group_id,
                client_id=member.name if member.mode == "broadcasting" else "",
                last=group.last,
                changes=group.changes,
                max_retries=group.max_retries if "run" in group.kinds else None,
                revoke_timeout_s=group.revoke_timeout_ms / 1_000,
                handle_timeout_s=group.handle_timeout_s,
            )

    def _left(self) -> dict[str, list[Place]]:
        """Return audience -> messages that it has not handled; only audiences with a member that stays count."""
        audiences = {member.audience for member in self.members()}
        return {audience: left for audience in sorted(audiences) if (left := self.truth.left(audience))}

    def _raise_a_finding(self) -> None:
        self._check_departures()
        for finding in self.truth.findings:
            raise finding

    def _ended(self, thread: VirtualThread, problem: BaseException) -> None:
        """Note an exception that has ended a thread: nothing may end so but what the world raises."""
        if not isinstance(problem, Finding) and thread.name != "driver":
            self.truth.find("a thread ended", f"{thread.name} ({thread.process}): {problem!r}")
            self.truth.findings[-1].__cause__ = problem

    def _calm_down(self) -> None:
        now_s = self.scheduler.now_s
        self.say("-- no more faults")
        self.is_calm = True
        self.log.down_until_s = min(self.log.down_until_s, now_s)
        self.coordinator.away_until_s = self.observer.away_until_s = 0.0
        for process in self.processes:
            if not process.is_killed:
                process.network.calm_down(now_s)
        self._end_deployments()

    def _end_deployments(self) -> None:
        """Replace the members that subscribe something else than all do in the end, or let them change it."""
        for member in self.members():
            if member.wanted == member.group.last:
                continue
            changes = member.group.later is not None and not isinstance(member, AsyncProcess)
            if changes and Random(f"{self.plan.seed} end of {member.name}").random() < 0.5:
                if member.may_subscribe:
                    self.say(f"-- in the end: {subscribe(self, member, member.group.last)}")
                continue
            self.say(f"-- the deployment replaces {member.name}")
            member.leave()

    def _finish(self) -> None:
        """Wait until all messages have ended, and all offsets are committed."""
        scheduler = self.scheduler
        until_s = scheduler.now_s + CALM_S
        rng = Random(f"{self.plan.seed} calm")
        while True:
            self._raise_a_finding()
            self._end_deployments()
            for group in self.plan.groups:
                if not self.members(group):
                    self.join(group, rng)
            for member in self.members():
                if member.consumer is not None:
                    _resume(member)
            if self._is_complete():
                return
            if scheduler.now_s > until_s:
                behind = {group.group_id: self._behind(group) for group in self.plan.groups}
                says = f"not handled {self._left()}, not committed {behind}, not revoked {self._strangers()}"
                raise Finding("lost", f"after {CALM_S:g} s without faults: {says}")
            scheduler.sleep(1.0)

    def _await_watchers(self) -> None:
        """Wait until the mirror and the live view have come to rest where the coordinator is."""
        ends_s = self.scheduler.now_s + WATCHED_S
        for watcher in self.processes:
            if not isinstance(watcher, MirrorProcess | LiveProcess):
                continue
            if isinstance(watcher, LiveProcess) and self.happened["reshard"]:
                continue  # without tables, its members are learned from the log
            while (difference := watcher.difference()) and self.scheduler.now_s < ends_s:
                self.scheduler.sleep(0.7)
            if difference:
                raise Finding(watcher.kind, f"not at rest after {WATCHED_S:g} s: {difference}")

    def _is_complete(self) -> bool:
        if not all(process.is_done for process in self.processes if isinstance(process, ProducerProcess)):
            return False
        if any(thread.is_alive() for thread in self._helpers):
            return False
        return not (self._left() or self._strangers() or any(map(self._behind, self.plan.groups)))

    def _strangers(self) -> list[str]:
        """Return the queues of members that are settled and do not subscribe the topics of these queues."""
        members = [one for one in self.members() if one.may_subscribe and one.wanted == one.group.last]
        return [
            f"{queue} of {member.name}"
            for member in members
            for queue in self.truth.choices[member.name].assigned
            if not (has_failed_messages(queue.topic) or member.wanted.has(queue.topic))
        ]

    def _behind(self, group: GroupPlan) -> dict[str, tuple[int, int]]:
        """Return queue, with the member in a broadcasting group -> committed offset and end, where they differ."""
        state = self.coordinator.group(group.group_id)
        has_retries = self.modes[group.group_id] == "clustering" and "run" in group.kinds
        if self.modes[group.group_id] == "clustering":
            offsets = {"": {} if state is None else state.offsets}
        else:
            known = {} if state is None else state.broadcast_offsets
            names = [member.name for member in self.members(group)]
            offsets = {name: known[name].offsets if name in known else {} for name in names}
        topics = [*self.truth.topics(group.last), *([retry_topic_of(group.group_id)] if has_retries else [])]
        numbers = {} if state is None or self.modes[group.group_id] == "broadcasting" else state.settings.slices
        return {
            f"{queue} {name}".rstrip(): (known, partition.end)
            for name, of_name in offsets.items()
            for topic in topics
            for number, partition in enumerate(self.log.topics.get(topic, ()))
            for queue in cut(Queue(topic, "", number), numbers.get(topic, 1))
            if (known := of_name.get(queue, 0)) != partition.end and partition.end
            if not self.truth.may_stay_beyond(group.group_id, queue, known)
        }

    def _leave(self) -> None:
        """Let all processes end, and judge how long it takes."""
        frozen = [self.scheduler.frozen_until_s(one.name) for one in self.processes if not one.is_killed]
        began_s = max([self.scheduler.now_s, *frozen])
        well = [process for process in self.processes if not process.is_killed]
        for process in well:
            process.leave()
        bound_s = 45.0 + CLOSE_S + 30.0
        while any(process.thread.is_alive() for process in well):
            self._raise_a_finding()
            if self.scheduler.now_s > began_s + bound_s:
                names = [process.name for process in well if process.thread.is_alive()]
                raise Finding("no end", f"{names} do not end within {bound_s:g} s")
            self.scheduler.sleep(0.5)
        ends_s = self.scheduler.now_s + LONGEST_CALL_S
        while self._threads_left() and self.scheduler.now_s < ends_s:
            self.scheduler.sleep(1.0)
        self.scheduler.sleep(2.0)
        ends = self.coordinator.ends()
        while not self.coordinator.has_decided(ends):
            self.scheduler.sleep(1.0)

    def _members_left(self, group: GroupPlan) -> list[str]:
        state = self.coordinator.group(group.group_id)
        return [] if state is None else sorted(state.members)

    def _threads_left(self) -> list[str]:
        """Return the threads of processes that have ended; a call of a handler that hangs keeps its thread."""
        ours = {process.name for process in self.processes if not process.is_killed}
        return [
            thread.name
            for thread in self.scheduler.threads
            if thread.process in ours and not thread.is_finished and not thread.is_spare
        ]

    def _check_the_end(self) -> None:
        truth = self.truth
        if left := self._threads_left():
            truth.find("threads left", f"{left}")
        ends_s = self.scheduler.now_s
        if self.plan.is_rough:  # a leave may be lost, as one that Kafka did not acknowledge; then the session ends
            ends_s += max(group.session_timeout_ms for group in self.plan.groups) / 1_000 + GONE_S
        for group in self.plan.groups:
            while (members := self._members_left(group)) and self.scheduler.now_s < ends_s:
                self.scheduler.sleep(5.0)
            if members:
                truth.find("members left", f"{members} of {group.group_id}")
            if not self.plan.is_rough:
                self._check_nothing_repeated(group)
            self._check_letters(group)
        truth.check_acknowledged()

    def _check_nothing_repeated(self, group: GroupPlan) -> None:
        audiences = [one for one in self.truth.groups.values() if one.group_id == group.group_id]
        twice = [place for one in audiences for place, numbers in one.dead.items() if len(numbers) > 1]
        if twice:
            self.truth.find("repeat", f"{group.group_id}: dead letters in a world without faults: {twice}")

    def _check_letters(self, group: GroupPlan) -> None:
        """Judge whether each letter is open, was sent again, or was dropped by an operator."""
        audiences = [one for one in self.truth.groups.values() if one.group_id == group.group_id]
        topic = self.log.topics.get(dead_letter_topic_of(group.group_id))
        if topic is None:
            return
        stored = {number for one in audiences for numbers in one.dead.values() for number in numbers}
        settled = {number for one in audiences for number in (*one.resent, *one.dropped)}
        gone = {number for number in stored if number < topic[0].first} - settled
        if gone:
            self.truth.find("letters lost", f"{group.group_id}: {sorted(gone)} were deleted, and nobody settled them")


def _resume(member: ConsumerProcess) -> None:
    consumer = member.consumer
    assert consumer is not None
    reading = consumer.assignment(with_retries=True)
    if reading:
        consumer.resume(reading)


class _StoryHandler(logging.Handler):
    """Adds what wakeroll logs to the story."""

    def __init__(self, world: RingWorld) -> None:
        super().__init__(logging.INFO)
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        process = getattr(self._world.scheduler.current, "process", "")
        self._world.say(f"   {process} [{record.levelname.lower()}] {record.getMessage()}")


@contextmanager
def _logged(world: RingWorld) -> Iterator[None]:
    handler = _StoryHandler(world)
    loggers = [logging.getLogger(name) for name in ("wakeroll", "wakeroll_pipeline")]
    before = [(one.level, one.propagate) for one in loggers]
    for one in loggers:
        one.addHandler(handler)
        one.setLevel(logging.INFO)
        one.propagate = False
    try:
        yield
    finally:
        for one, (level, propagate) in zip(loggers, before, strict=True):
            one.removeHandler(handler)
            one.setLevel(level)
            one.propagate = propagate
