"""The demo of `make run`: consumers join and die, queues change owners, no message is lost, and SQL shows why."""

import shutil
import sys
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from confluent_kafka.admin import NewTopic
from msgspec import structs
from rich.console import Console
from rich.table import Table

from wakeroll.connection import Connection
from wakeroll.epoch_ms import now_ms
from wakeroll.errors import WakerollError
from wakeroll_model.events import Configure
from wakeroll_pipeline.kafka.topic_admin import Cluster
from wakeroll_pipeline.local.child_process import Child
from wakeroll_pipeline.local.local_page import local_page
from wakeroll_pipeline.local.local_system import LocalSystem, Stopped, local_system
from wakeroll_pipeline.local.story_checks import (
    GroupView,
    Watcher,
    balance,
    doubly_owned,
    read_handled,
    repeats,
    takeover,
)
from wakeroll_pipeline.local.story_queries import show_answers
from wakeroll_pipeline.local.traffic import Probe, Traffic, configure
from wakeroll_pipeline.settings import Settings
from wakeroll_pipeline.storage.place import Place

GROUP = "billing"
QUEUES = 8
PER_SECOND = 200
SESSION_MS = 18_000
"""Session timeout (ms), after which the queues of a killed consumer without a last will get new owners. A client stops
3 s earlier, and busy cores may delay answers by 10 s."""
NO_WILL = "c3"
"""The consumer without a last will, so that the demo shows both cases."""
STOPPED = 130
"""Exit code of a demo that was stopped before its end."""
_STEP_S = 180.0

out = Console()


class DemoFailed(WakerollError):
    """A step of the demo did not succeed in time; the message names the step."""


def run_demo(settings: Settings, stop: threading.Event, page_port: int | None = None) -> int:
    """Run the demo; return 0 if all checks succeed (`Story.reckon`), 1 if one fails, 130 if it was stopped.

    Each run starts from scratch: it deletes its folder under `home` and its checkpoints, and uses new topics if the
    broker is not the embedded one.

    Args:
        settings: settings of a deployment; the demo uses folders in its home.
        stop: ends the demo.
        page_port: port of a page that shows the tables at the end, until `stop`; None: no page.

    Raises:
        InvalidUsage: `home` or `checkpoints` is not local.
    """
    embedded = not settings.bootstrap
    unique = f"demo-{uuid.uuid4().hex[:8]}"
    settings = structs.replace(
        settings,
        home=str(Place.of(settings.home).path / "demo"),
        checkpoints=str(settings.checkpoints_folder.path / "demo"),
        work="",
        prefix=settings.prefix if embedded else unique,
    )
    for folder in (settings.home, settings.checkpoints):
        shutil.rmtree(folder, ignore_errors=True)
    started = time.monotonic()
    try:
        with ExitStack() as stack:
            out.print("[dim]starting broker, observer and Spark jobs (about 20 s) ...[/]")
            system = stack.enter_context(local_system(settings, stop))
            story = Story(system, stack, stop, topic="orders" if embedded else f"{unique}-orders")
            story.tell()
            out.print("[dim]stopping consumers and jobs ...[/]")
        well = story.reckon()
        show_answers(system.settings, GROUP, f"{story.topic}-3", out)
    except Stopped:
        out.print("stopped; everything is down")
        return STOPPED
    out.print(f"[dim]the whole demo took {time.monotonic() - started:.0f} s; tables in {settings.warehouse}[/]")
    if page_port is not None:
        _serve(structs.replace(settings, bootstrap=""), page_port, stop)
    return 0 if well else 1


def _serve(settings: Settings, port: int, stop: threading.Event) -> None:
    """Serve the page of the tables until the stop."""
    with local_page(settings, port) as page:
        out.print(f"the page of these tables: [bold]{page.address}[/]; Ctrl-C stops it")
        while not stop.wait(0.5):
            page.check()


class Story:
    """The steps of the demo, with its consumers, its traffic and the expected results."""

    def __init__(self, system: LocalSystem, stack: ExitStack, stop: threading.Event, topic: str) -> None:
        self.topic = topic
        self._system = system
        self._stack = stack
        self._stop = stop
        self._connection: Connection = system.settings.connection
        self._consumers: dict[str, Child] = {}
        self._handled = Path(system.settings.home) / "handled"
        self._handled.mkdir(parents=True)
        _make_topic(self._connection, topic)
        keys = system.settings.read_keys()
        # Short sessions; with the default, the demo would take minutes.
        configure(self._connection, keys, Configure(group_id=GROUP, heartbeat_ms=1_000, session_timeout_ms=SESSION_MS))
        self._watcher = Watcher(self._connection, GROUP)
        self._traffic = Traffic(self._connection, topic, PER_SECOND)
        self._probe = Probe(self._connection, topic, keys)
        self._graceful_ns = 0

    def tell(self) -> None:
        """Run all steps, from the first consumer to the last message."""
        for part in (self._watcher, self._traffic, self._probe):
            part.start()
            self._stack.callback(part.close)
        out.rule("three consumers join")
        since_ms = now_ms()
        for client_id in ("c1", "c2", "c3"):
            self._start(client_id)
        self._until("the queues are 3/3/2", lambda view: view.shares == [3, 3, 2])
        self._show(since_ms)
        self._until_all_consume({"c1", "c2", "c3"}, since_ms)

        out.rule("c2 is killed (SIGKILL), and its last will takes effect")
        self._kill("c2")
        out.rule(f"{NO_WILL}, which has no last will, is killed: its session must end")
        self._kill(NO_WILL)
        self._graceful_ns = time.time_ns()
        out.rule("two more join: all continue, nothing is repeated")
        since_ms = now_ms()
        for client_id in ("c4", "c5"):
            self._start(client_id)
        self._until("the queues are 3/3/2", lambda view: view.shares == [3, 3, 2])
        self._show(since_ms)
        self._until_all_consume({"c4", "c5"}, since_ms)

        out.rule("c4 leaves in good order")
        since_ms = now_ms()
        self._consumers["c4"].stop()
        self._until("the queues are 4/4", lambda view: view.shares == [4, 4] and "c4" not in _owners(view), QUEUES)
        self._show(since_ms)

        out.rule("a client sends bad data")
        self._send_nonsense()
        self._until("it is rejected", lambda view: bool(view.rejections))
        for rejected in self._watcher.view().rejections:
            out.print(f"rejected, rule {rejected.rule}: {rejected.detail}", markup=False)

        out.rule("everything is consumed to the end")
        self._probe.close()
        self._traffic.close()
        self._until_consumed()
        for consumer in self._consumers.values():
            consumer.stop()
        self._until("all have left", lambda view: not view.members)

    def reckon(self) -> bool:
        """Print the message counts from the consumers' own logs; return whether all checks succeed.

        The checks: no message is lost, no queue has two owners at once, and only the kills cause repetitions.
        """
        handled = read_handled(self._logs())
        result = balance(self._traffic.produced, handled)
        repeated = repeats(handled, self._graceful_ns)
        double = doubly_owned(handled, self._watcher.view().grants)
        table = Table(title="by the consumers' own logs")
        for name in ("produced", "consumed", "lost", "queues with two owners", "repeated", "of them in graceful steps"):
            table.add_column(name, justify="right")
        counts = (result.produced, result.consumed, result.lost, len(double), result.repeated, repeated)
        table.add_row(*map(str, counts))
        out.print(table)
        return not (result.lost or double or repeated)

    def _start(self, client_id: str) -> None:
        connection = self._connection
        login = self._system.settings.kafka_config
        child = Child(
            f"consumer {client_id}",
            [
                *(sys.executable, "-m", "wakeroll_pipeline.local.worker"),
                *("--bootstrap", connection.bootstrap, "--prefix", connection.topics.prefix),
                *("--group", GROUP, "--client", client_id, "--topic", self.topic),
                *("--log", str(self._handled / client_id)),
                *(("--kafka-config", login) if login else ()),
                *(("--no-last-will",) if client_id == NO_WILL else ()),
            ],
            log=self._system.settings.logs / f"{client_id}.log",
        )
        self._consumers[client_id] = child
        child.start()
        self._stack.callback(child.stop)

    def _kill(self, client_id: str) -> None:
        """Kill a consumer, wait until others have its queues and have caught up, and print delay and repetitions."""
        queues = {queue_id for queue_id, given in self._watcher.view().owners.items() if given.to == client_id}
        since_ms = now_ms()
        self._consumers[client_id].kill()
        killed_ns = time.time_ns()
        self._until(f"{client_id} has no queues", lambda view: client_id not in _owners(view), QUEUES)
        self._show(since_ms)
        self._until_caught_up()
        after = takeover(read_handled(self._logs()), client_id, queues, killed_ns)
        out.print(
            f"others handle messages of its queues {after.first_s:.1f} to {after.last_s:.1f} s after the kill; "
            f"repeated: {after.repeated}"
        )

    def _logs(self) -> dict[str, Path]:
        return {client_id: self._handled / client_id for client_id in self._consumers}

    def _until(self, what: str, true: Callable[[GroupView], bool], queues: int = 0) -> None:
        """Wait until the decisions fulfil the condition."""
        self._wait_for(what, lambda: true(view := self._watcher.view()) and len(view.owners) >= queues)

    def _until_all_consume(self, clients: set[str], since_ms: int) -> None:
        def all_consume() -> bool:
            handled = read_handled(self._logs())
            return {one.client_id for one in handled} >= clients

        self._wait_for(f"{', '.join(sorted(clients))} consume", all_consume)
        firsts: dict[str, int] = {}
        for one in read_handled(self._logs()):
            firsts.setdefault(one.client_id, one.start_ns // 1_000_000)
        times = ", ".join(f"{name} {(firsts[name] - since_ms) / 1000:.1f} s" for name in sorted(clients))
        out.print(f"first message after its process was started: {times}")

    def _until_caught_up(self) -> None:
        """Wait until each queue is consumed up to its current end, including messages left by the kill."""
        newest: dict[int, int] = {}
        for queue_id, offset in set(self._traffic.produced):
            newest[queue_id] = max(newest.get(queue_id, -1), offset)
        since_ns = time.time_ns()

        def caught_up() -> bool:
            reached: dict[int, int] = {}
            for one in read_handled(self._logs()):
                if one.start_ns >= since_ns:
                    reached[one.queue_id] = max(reached.get(one.queue_id, -1), one.offset)
            return all(reached.get(queue_id, -1) > offset for queue_id, offset in newest.items())

        self._wait_for("the others have caught up", caught_up)

    def _send_nonsense(self) -> None:
        producer = self._connection.producer(log_level=0)
        value = b'{"type": "heartbeat", "group_id": "%s", "client_id": "c9", "epoch": "seven"}' % GROUP.encode()
        producer.produce(self._connection.topics.groups, value, key=GROUP)
        producer.flush(10)

    def _until_consumed(self) -> None:
        produced = self._traffic.produced

        def consumed() -> bool:
            return not produced - {(one.queue_id, one.offset) for one in read_handled(self._logs())}

        try:
            self._wait_for("every message is consumed", consumed)
        except DemoFailed as error:
            out.print(f"[red]{error}[/]")  # `reckon` counts what is missing

    def _wait_for(self, what: str, true: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _STEP_S
        with out.status(f"waiting: {what}"):
            while not true():
                if self._stop.wait(0.1):
                    raise Stopped
                self._system.check()
                if time.monotonic() > deadline:
                    raise DemoFailed(f"not true within {_STEP_S:.0f} s: {what}; see {self._system.settings.logs}")

    def _show(self, since_ms: int) -> None:
        """Print the owners of all queues with epochs and reasons, and the duration of each rebalance."""
        view = self._watcher.view()
        table = Table()
        for name in ("owner", "queues", "since epoch", "how it was freed"):
            table.add_column(name)
        for owner in sorted(_owners(view)):
            mine = sorted(queue_id for queue_id, given in view.owners.items() if given.to == owner)
            epochs = sorted({view.owners[queue_id].epoch for queue_id in mine})
            hows = sorted({view.owners[queue_id].how for queue_id in mine})
            names = ", ".join(f"{self.topic}-{queue_id}" for queue_id in mine)
            table.add_row(owner, names, ", ".join(map(str, epochs)), ", ".join(hows))
        out.print(table)
        for rebalance in view.rebalances:
            published_ms = view.published_ms.get(rebalance.epoch)
            if rebalance.at_ms < since_ms or published_ms is None:
                continue
            out.print(
                f"epoch {rebalance.epoch}: {rebalance.trigger}; clients: {rebalance.clients}, "
                f"queues moved: {rebalance.moved}; sent {published_ms - rebalance.at_ms} ms after its cause, "
                f"{(published_ms - since_ms) / 1000:.1f} s after the step began"
            )


def _owners(view: GroupView) -> set[str]:
    return {given.to for given in view.owners.values() if given.to is not None}


def _make_topic(connection: Connection, topic: str) -> None:
    error = Cluster(connection).create([NewTopic(topic, QUEUES)])[topic]
    if error is not None:
        raise DemoFailed(f"cannot create the topic {topic}: {error.str()}")
