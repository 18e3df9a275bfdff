"""Slices on a real broker: members of one partition come, go and are killed, and their number of slices changes."""

import asyncio
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import Message

from tests.support.waiting import wait_until
from wakeroll import AsyncConsumer, Consumer, Queue, heartbeat_thread
from wakeroll.keys import key_to_sign, new_signer
from wakeroll_model import feature_levels
from wakeroll_model.events import Level
from wakeroll_model.signing import DEV_KEYS

pytestmark = pytest.mark.e2e

KEYS = 40
AT_WORK_S = 0.002
"""How long a member is at work on each message."""


class Work:
    """What all members were handed: the order of each key, and that nobody else is at work on it."""

    def __init__(self) -> None:
        self.count = Counter[bytes]()
        """Key -> how many of its messages were handed out, repeated ones left out."""
        self.repeated = 0
        self.faults: list[str] = []
        self._at_work: dict[bytes, str] = {}
        self._dead: set[str] = set()
        self._lock = threading.Lock()

    def handle(self, name: str, messages: list[Message]) -> None:
        """Be at work on messages for a moment, as this member."""
        keys = {message.key() for message in messages}
        with self._lock:
            for key in keys:
                other = self._at_work.get(key)
                if other is not None and other not in self._dead:
                    self.faults.append(f"{name} and {other} are at work on {key!r}")
                self._at_work[key] = name
            for message in messages:
                self._note(name, message.key(), int(message.value()))
        time.sleep(AT_WORK_S * len(messages))
        with self._lock:
            for key in keys:
                if self._at_work.get(key) == name:
                    del self._at_work[key]

    def is_killed(self, name: str) -> None:
        """Note that a member is at work no more, whatever it had in hand."""
        with self._lock:
            self._dead.add(name)

    def _note(self, name: str, key: bytes, number: int) -> None:
        known = self.count[key]
        if number > known:
            self.faults.append(f"{name} has {number} of {key!r} before {known}")
        if number < known:
            self.repeated += 1
        self.count[key] = max(known, number + 1)


class Traffic(threading.Thread):
    """Messages of all keys in turn, into one partition; the value counts those of the key."""

    def __init__(self, coordinator, topic: str) -> None:
        super().__init__(name="traffic", daemon=True)
        self.sent = Counter[bytes]()
        self._producer, self._topic = coordinator.connection.producer(), topic
        self._stopping = threading.Event()

    def run(self) -> None:
        """Produce some hundred messages per second."""
        while not self._stopping.wait(0.05):
            self.send()

    def send(self) -> None:
        """Produce one message of each key."""
        for number in range(KEYS):
            key = f"key-{number}".encode()
            self._producer.produce(self._topic, str(self.sent[key]).encode(), key=key, partition=0)
            self.sent[key] += 1
        assert self._producer.flush(120) == 0

    def stop(self) -> None:
        """Produce no more."""
        self._stopping.set()
        self.join()


class Member(threading.Thread):
    """A member that consumes in one of the ways that there are, until it is told to end."""

    def __init__(self, coordinator, group_id: str, topic: str, name: str, way: str, work: Work) -> None:
        super().__init__(name=name, daemon=True)
        self.problem: BaseException | None = None
        self.queues: Callable[[], list[Queue]] = list
        self._way, self._work = way, work
        self._stopping = threading.Event()
        self._settings = {
            "client_id": name,
            "consume_from": "first",
            "prefix": coordinator.connection.topics.prefix,
            "last_will": False,
            "commit_interval": 0.5,
        }
        self._place = group_id, [topic], coordinator.connection.bootstrap
        self._consumer: Consumer | None = None
        self.start()

    def run(self) -> None:
        """Consume."""
        try:
            if self._way == "async for":
                asyncio.run(self._read())
                return
            self._consumer = Consumer(*self._place, **self._settings)
            self.queues = self._consumer.assignment
            with self._consumer as consumer:
                if self._way == "run":
                    consumer.run(lambda messages: self._work.handle(self.name, messages), workers=4, batch_size=8)
                else:
                    self._receive(consumer)
        except BaseException as problem:
            self.problem = problem

    def _receive(self, consumer: Consumer) -> None:
        while not self._stopping.is_set():
            some = consumer.consume(30, 0.1) if self._way == "consume" else [consumer.poll(0.1)]
            if messages := [one for one in some if one is not None]:
                self._work.handle(self.name, messages)

    async def _read(self) -> None:
        async with AsyncConsumer(*self._place, **self._settings) as consumer:
            self.queues = consumer.assignment
            while not self._stopping.is_set():
                if (message := await consumer.poll(0.1)) is not None:
                    await asyncio.to_thread(self._work.handle, self.name, [message])

    def leave(self) -> None:
        """Leave in good order, with all messages processed."""
        self._stopping.set()
        if self._way == "run" and self._consumer is not None:
            self._consumer.stop()
        self.join()
        if self.problem is not None:
            raise self.problem

    def kill(self) -> None:
        """Fall silent, as by a SIGKILL: no commit, no farewell."""
        assert self._consumer is not None
        self._work.is_killed(self.name)
        control = self._consumer._control
        control._stopping.set()
        control._thread.join()
        self._consumer._control.leave = lambda *_: None
        heartbeat_thread._members.discard(control)  # it does not leave at the end of the interpreter either
        self._stopping.set()
        self._consumer._end_soon()


@pytest.fixture(scope="module", autouse=True)
def level(coordinator) -> None:
    """Slices are new in the newest level."""
    coordinator.everywhere(Level(level=feature_levels.NEWEST), new_signer(key_to_sign(DEV_KEYS, "operator")))
    wait_until(lambda: set(coordinator.levels.values()) == {feature_levels.NEWEST}, "the level is raised")


@contextmanager
def members() -> Iterator[dict[str, Member]]:
    """Members by name; those that are there at the end leave."""
    found: dict[str, Member] = {}
    try:
        yield found
    finally:
        for member in found.values():
            member.leave()


def cut(coordinator, group_id: str, topic: str, slices: int, among: dict[str, Member]) -> None:
    """Change the number of slices, and wait until the members have them."""
    coordinator.configure(group_id, slices={topic: slices})
    is_cut_into(coordinator, group_id, topic, slices, among)


def is_cut_into(coordinator, group_id: str, topic: str, slices: int, among: dict[str, Member]) -> None:
    """Wait until the slices have these members as their owners, and are read."""
    wanted = [Queue(topic, "", 0, slices, number) for number in range(slices)]

    def is_there() -> bool:
        owners = {queue: owner for queue, owner in coordinator.owners(group_id).items() if queue.topic == topic}
        read = sorted(queue for member in among.values() for queue in member.queues() if queue.topic == topic)
        return list(owners) == wanted == read and len(set(owners.values()) & set(among)) == min(slices, len(among))

    wait_until(
        is_there,
        f"{slices} slices are read",
        state=lambda: (coordinator.owners(group_id), {name: one.queues() for name, one in among.items()}),
    )


def test_the_order_of_each_key_holds_whatever_happens(coordinator, group_id):
    """Eight slices of one partition, over members that consume in each of the ways; nothing is lost.

    Nothing is repeated either, until a member is killed: then what it had not committed.
    """
    topic = coordinator.topic(1)
    work, traffic = Work(), Traffic(coordinator, topic)
    ways = ["run", "poll", "consume", "async for"]
    coordinator.configure(group_id, slices={topic: 8}, session_timeout_ms=10_000, heartbeat_ms=500)
    traffic.start()
    with members() as those:

        def join(name: str, way: str) -> None:
            those[name] = Member(coordinator, group_id, topic, name, way, work)

        for number, way in enumerate(ways):
            join(f"c{number}", way)
        is_cut_into(coordinator, group_id, topic, 8, those)
        join("c4", "run")
        for slices in (16, 4):
            cut(coordinator, group_id, topic, slices, those)
        those.pop("c1").leave()
        is_cut_into(coordinator, group_id, topic, 4, those)
        for slices in (1, 8):
            cut(coordinator, group_id, topic, slices, those)
        assert (work.faults, work.repeated) == ([], 0)

        those.pop("c0").kill()
        join("c5", "poll")
        is_cut_into(coordinator, group_id, topic, 8, those)
        cut(coordinator, group_id, topic, 2, those)
        those.pop("c5").kill()
        is_cut_into(coordinator, group_id, topic, 2, those)
        traffic.stop()
        wait_until(
            lambda: work.count == traffic.sent,
            "all messages are handed out",
            state=lambda: traffic.sent - work.count,
        )

    assert work.faults == []
    end = sum(traffic.sent.values())
    wait_until(
        lambda: (
            [offset for queue, offset in coordinator.offsets_of(group_id, topic).items() if queue.slices == 2]
            == [end, end]
        ),
        "everything is committed",
        state=lambda: coordinator.offsets_of(group_id, topic),
    )


@pytest.mark.usefixtures("sink")
def test_an_operator_cuts_a_topic_and_sets_offsets_of_its_slices(coordinator, group_id, wakeroll):
    """By the commands; a whole partition stands for all of its slices, and nothing that they have not done is lost."""
    topic, other = coordinator.topic(1), coordinator.topic(1)
    where = ["--bootstrap", coordinator.connection.bootstrap, "--prefix", coordinator.connection.topics.prefix]
    work, traffic = Work(), Traffic(coordinator, topic)
    parts = [str(Queue(topic, "", 0, 4, number)) for number in range(4)]

    def plan_of(*words: str) -> dict[str, Any]:
        code, said, complaint = wakeroll("reset-offsets", group_id, *words, "--json", *where)
        assert code == 0, complaint
        return json.loads(said)

    def name_of(row: dict[str, Any]) -> str:
        return str(Queue(**row["queue"]))

    def recorded_in(plan: dict[str, Any]) -> list[tuple[str, int]]:
        return [(name_of(one), one["offset"]) for one in plan["recorded"]]

    def refusal_of(*words: str) -> str:
        code, _, complaint = wakeroll(*words, *where)
        assert code != 0
        return complaint.splitlines()[-1]

    code, said, complaint = wakeroll("configure", group_id, "--slices", f"{topic}=4", *where)
    assert code == 0, complaint
    assert f"note: slices: {topic} 4" in said
    traffic.send()
    with members() as those:
        those["c0"] = Member(coordinator, group_id, topic, "c0", "run", work)
        is_cut_into(coordinator, group_id, topic, 4, those)
        wait_until(
            lambda: list(coordinator.offsets_of(group_id, topic).values()) == [KEYS] * 4,
            "everything is committed",
            state=lambda: coordinator.offsets_of(group_id, topic),
        )
        answers = {command: wakeroll(command, group_id, *where) for command in ("lag", "describe")}
        for command, (code, said, complaint) in answers.items():
            assert (code, parts[1] in said.replace("\n", "")) == (0, True), (command, said, complaint)
        assert f"no member of {group_id!r} has a queue of {other}; they have queues of {topic}" in refusal_of(
            "configure", group_id, "--slices", f"{other}=8"
        )

    plan = plan_of("--queue", parts[1], "--to-offset", "10", "--execute")
    assert recorded_in(plan) == [(parts[1], 10)]
    plan = plan_of("--to-current", "--topic", topic)
    assert [(one["committed"], one["offset"]) for one in plan["rows"]] == [(10, 10)]
    assert plan["notes"] == [f"the slices of {topic}-0 have committed offsets from 10 to {KEYS}; all of them become 10"]
    assert f"{topic}-0 is cut into slices" in refusal_of("skip", group_id, f"{topic}-0")
    plan = plan_of("--like", group_id, "--queue", parts[1])
    assert [(name_of(one), one["offset"]) for one in plan["rows"]] == [(parts[1], 10)]
    plan = plan_of("--queue", f"{topic}-0", "--to-last", "--execute")
    assert recorded_in(plan) == [(part, KEYS) for part in parts]
    assert "no queue" in refusal_of("reset-offsets", group_id, "--queue", f"{topic}-1/0of4", "--to-last")
    assert "is cut into 4 slices" in refusal_of(
        "reset-offsets", group_id, "--queue", f"{topic}-0/0of8", "--to-last", "--execute"
    )

    code, said, complaint = wakeroll("configure", group_id, "--slices", f"{topic}=1", *where)
    assert (code, "note: slices" in said) == (0, False), complaint
    code, said, complaint = wakeroll("delete-offsets", group_id, "--topic", topic, "--json", *where)
    assert code == 0, complaint
    assert coordinator.offsets_of(group_id, topic) == {}
