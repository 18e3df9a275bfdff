"""The demo of `make run ARGS="--kafka"`: Kafka's own groups, and the record that `watch-kafka` makes of them.

Its consumers use Kafka's client and not wakeroll. The watch starts after the first kill.
"""

import json
import os
import re
import shlex
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import MemberDescription, NewTopic
from msgspec import Struct, structs
from rich.console import Console
from rich.table import Table

from wakeroll.errors import InvalidUsage, WakerollError
from wakeroll_model.coordinator_log.kafka_names import client_name
from wakeroll_pipeline.kafka.topic_admin import Cluster
from wakeroll_pipeline.ledger.duck_ledger import duck_ledger
from wakeroll_pipeline.local.broker import EmbeddedBroker
from wakeroll_pipeline.local.child_process import Child
from wakeroll_pipeline.local.demo import STOPPED
from wakeroll_pipeline.local.local_system import Stopped
from wakeroll_pipeline.local.story_checks import Balance, balance, read_handled
from wakeroll_pipeline.local.story_queries import command, show_kafka_answers
from wakeroll_pipeline.local.traffic import Traffic
from wakeroll_pipeline.settings import Settings
from wakeroll_pipeline.storage.place import Place

TOPIC = "orders"
QUEUES = 6
PER_SECOND = 60
SESSION_MS = 6_000
"""Session timeout of all members (ms): the shortest that Kafka's brokers accept by default."""
BROKER = {
    "group.consumer.min.session.timeout.ms": SESSION_MS,
    "group.consumer.session.timeout.ms": SESSION_MS,
    "group.consumer.min.heartbeat.interval.ms": 500,
    "group.consumer.heartbeat.interval.ms": 500,
}
"""Settings of the broker for members of KIP-848, whose timeouts are the broker's."""
MEMBER: Mapping[str, str | int] = {
    "auto.offset.reset": "earliest",
    "auto.commit.interval.ms": 1_000,
}
CLASSIC = {"session.timeout.ms": SESSION_MS, "heartbeat.interval.ms": 500}
GROUPS: Mapping[str, Mapping[str, str | int]] = {
    "eager": {"partition.assignment.strategy": "range", **CLASSIC},
    "cooperative": {"partition.assignment.strategy": "cooperative-sticky", **CLASSIC},
    "kip-848": {"group.protocol": "consumer"},
}
"""Name of a group -> the settings of Kafka's client that define its kind."""
MEMBERS = ("c1", "c2", "c3")
_STEP_S = 120.0

out = Console()


class KafkaDemoFailed(WakerollError):
    """A step of the demo did not succeed in time; the message names the step."""


class Page(Struct, frozen=True):
    """The page of the demo's tables."""

    port: int
    """Port of the page; Port of the page; 0: a free one."""
    stays: bool
    """Whether the page is served after the end of the demo, until the stop."""


def run_kafka_demo(settings: Settings, stop: threading.Event, page: Page) -> int:
    """Run the demo; return 0 if no message is lost and the tables agree with Kafka, else 1; 130 if stopped.

    Each run starts from scratch: it deletes its folder under `home`.

    Args:
        settings: settings of a deployment; the demo uses a folder in its home.
        stop: ends the demo.
        page: page of the watch, which serves it while the demo runs.

    Raises:
        InvalidUsage: the settings name brokers, or `home` is not local.
    """
    if settings.bootstrap:
        raise InvalidUsage(
            f"--kafka starts a broker of its own, and --bootstrap is {settings.bootstrap!r}; leave it out"
        )
    settings = structs.replace(settings, home=str(Place.of(settings.home).path / "kafka-demo"), work="")
    shutil.rmtree(settings.home, ignore_errors=True)
    started_s = time.monotonic()
    try:
        with ExitStack() as stack:
            out.print("[dim]starting a broker and nine consumers of Kafka's own groups (about 10 s) ...[/]")
            broker = stack.enter_context(EmbeddedBroker(settings.work_folder / "broker", settings=BROKER))
            settings = structs.replace(settings, bootstrap=broker.bootstrap)
            story = KafkaStory(settings, stack, stop, page)
            story.tell()
            well = story.reckon()
            show_kafka_answers(settings, f"{TOPIC}-3", "cooperative", out)
            out.print(
                f"[dim]the whole demo took {time.monotonic() - started_s:.0f} s; tables in {settings.warehouse}[/]"
            )
            asked = command(f"happened --home {shlex.quote(settings.home)}")
            out.print(f"what happened?  {asked}", soft_wrap=True, highlight=False)
            if page.stays:
                out.print(f"the page of these tables: [bold]{story.page}[/]; Ctrl-C stops it")
                while not stop.wait(0.5):
                    story.watch.check()
    except Stopped:
        out.print("stopped; everything is down")
        return STOPPED
    return 0 if well else 1


def _client_id(member: MemberDescription) -> str:
    return str(member.client_id)


def _name_on_record(member: MemberDescription) -> str:
    return client_name(member.member_id, member.client_id, member.group_instance_id)


class KafkaStory:
    """The steps of the demo: its groups, the traffic, and the watch."""

    def __init__(self, settings: Settings, stack: ExitStack, stop: threading.Event, page: Page) -> None:
        self._settings = settings
        self._stack = stack
        self._stop = stop
        self._handled = Path(settings.home) / "handled"
        self._handled.mkdir(parents=True)
        connection = settings.connection
        error = Cluster(connection).create([NewTopic(TOPIC, QUEUES)])[TOPIC]
        if error is not None:
            raise KafkaDemoFailed(f"cannot create the topic {TOPIC}: {error.str()}")
        self._admin = connection.admin(log_level=0)
        self._traffic = Traffic(connection, TOPIC, PER_SECOND)
        self._members: dict[tuple[str, str], Child] = {}
        self.page = ""
        """Address of the page, once the watch runs."""
        self.watch = Child(
            "wakeroll watch-kafka",
            [
                *(sys.executable, "-u", "-m", "wakeroll_pipeline.cli", "watch-kafka"),
                *("--serve", "--port", str(page.port)),
            ],
            log=settings.logs / "watch-kafka.log",
            env={**os.environ, **settings.environment()},
        )

    def tell(self) -> None:
        """Run all steps, from the first member to the last message."""
        self._traffic.start()
        self._stack.callback(self._traffic.close)
        out.rule("three groups of Kafka's own: three members each, one after the other")
        for number, member in enumerate(MEMBERS, 1):
            for group in GROUPS:
                self._start(group, member)
            self._until_owned(f"{member} has joined", dict.fromkeys(MEMBERS[:number], QUEUES // number))
        out.rule("c2 of each group is killed (SIGKILL)")
        for group in GROUPS:
            self._members.pop((group, "c2")).kill()
        self._until_owned("others have its queues", {"c1": 3, "c3": 3})

        out.rule("only now wakeroll watch-kafka is started: it reads what was before")
        self.watch.start()
        self._stack.callback(self.watch.stop)
        self.watch.wait_until(lambda: "the past of all groups is on record" in self.watch.log_tail(), _STEP_S)
        self.watch.wait_until(lambda: "serving http" in self.watch.log_tail(), _STEP_S)
        self.page = re.findall(r"serving (http://\S+)", self.watch.log_tail())[-1]
        out.print(f"the page, live: [bold]{self.page}[/]")

        out.rule("a rolling restart: each member leaves and comes back, one after the other")
        for member, other in (("c1", "c3"), ("c3", "c1")):
            for group in GROUPS:
                self._members.pop((group, member)).stop()
            self._until_owned(f"{member} has left", {other: 6})
            for group in GROUPS:
                self._start(group, member)
            self._until_owned(f"{member} is back", {"c1": 3, "c3": 3})

        out.rule("c3 is stuck: its process is suspended (SIGSTOP) until its session has ended")
        self._signal("c3", signal.SIGSTOP)
        self._until_owned("c1 has its queues", {"c1": 6})
        self._signal("c3", signal.SIGCONT)
        self._until_owned("c3 goes on", {"c1": 3, "c3": 3})

        out.rule("everything is consumed to the end")
        self._traffic.close()
        self._until("every message is consumed", lambda: not any(self._balance(group).lost for group in GROUPS))

    def reckon(self) -> bool:
        """Print results of the consumers' own logs and of the tables; return whether nothing is lost and both agree."""
        table = Table(title="by the consumers' own logs, and by the record")
        for name in ("group", "produced", "consumed", "lost", "repeated", "owners on record are those in Kafka"):
            table.add_column(name, justify="left" if name == "group" else "right")
        well = True
        for group in GROUPS:
            agrees = self._agrees(group)
            found = self._balance(group)
            counts = (found.produced, found.consumed, found.lost, found.repeated)
            table.add_row(group, *map(str, counts), "yes" if agrees else "no")
            well = well and agrees and not found.lost
        out.print(table)
        return well

    def _start(self, group: str, member: str) -> None:
        config = {
            "bootstrap.servers": self._settings.bootstrap,
            "group.id": group,
            "client.id": member,
            **MEMBER,
            **GROUPS[group],
        }
        child = Child(
            f"member {member} of {group}",
            [
                *(sys.executable, "-m", "wakeroll_pipeline.local.kafka_worker"),
                *("--topic", TOPIC, "--log", str(self._handled / f"{group} {member}"), "--config", json.dumps(config)),
            ],
            log=self._settings.logs / f"{group}-{member}.log",
        )
        self._members[group, member] = child
        child.start()
        self._stack.callback(child.stop)

    def _signal(self, member: str, number: signal.Signals) -> None:
        for group in GROUPS:
            os.kill(self._members[group, member].pid, number)

    def _owners(self, group: str, name: Callable[[MemberDescription], str] = _client_id) -> dict[int, str]:
        """Return queue -> name of its owner, as Kafka describes the group now."""
        try:
            its = self._admin.describe_consumer_groups([group])[group].result()
        except KafkaException:  # the group is new, and its coordinator is only being found
            return {}
        return {at.partition: name(one) for one in its.members for at in one.assignment.topic_partitions}

    def _until_owned(self, what: str, shares: dict[str, int]) -> None:
        """Wait until each group has these shares, client.id -> number of queues; print the time."""
        started_s = time.monotonic()
        seconds: dict[str, float] = {}

        def owned() -> bool:
            for group in GROUPS.keys() - seconds.keys():
                owners = list(self._owners(group).values())
                if {owner: owners.count(owner) for owner in owners} == shares:
                    seconds[group] = time.monotonic() - started_s
            return seconds.keys() == GROUPS.keys()

        self._until(what, owned)
        out.print(f"{what}: " + ", ".join(f"{group} {seconds[group]:.1f} s" for group in GROUPS))

    def _balance(self, group: str) -> Balance:
        logs = {member: self._handled / f"{group} {member}" for member in MEMBERS}
        return balance(set(self._traffic.produced), read_handled(logs))

    def _agrees(self, group: str) -> bool:
        """Wait a while until the tables have the owners that Kafka describes; return whether they have."""
        query = "select queue_id, client_id from current_assignments where group_id = $group_id"

        def agree() -> bool:
            with duck_ledger(self._settings.warehouse) as ledger:
                rows = ledger.rows(query, group_id=group)
            return {row.queue_id: row.client_id for row in rows} == self._owners(group, _name_on_record)

        try:
            self._until(f"the record of {group} is that of Kafka", agree)
        except KafkaDemoFailed:
            return False
        return True

    def _until(self, what: str, true: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + _STEP_S
        with out.status(f"waiting: {what}"):
            while not true():
                if self._stop.wait(0.2):
                    raise Stopped
                for child in (*self._members.values(), *((self.watch,) if self.page else ())):
                    child.check()
                if time.monotonic() > deadline_s:
                    raise KafkaDemoFailed(f"not true within {_STEP_S:.0f} s: {what}; see {self._settings.logs}")
