"""The time to show the state at any moment, with the load of a demo and with 10,000 heartbeats per second.

``python -m bench.any_moment [--rate 10000]`` writes `moments.json` and `docs/performance.md`. It takes a quarter of an
hour. The heartbeats change nothing, as most heartbeats.
"""

import argparse
import http.client
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from urllib.parse import quote, urlsplit

import msgspec
from msgspec import structs

from bench import moment_figures, report
from bench.machine import QUIET_LOAD, this_machine
from bench.moment_figures import Load, Moments
from bench.results import write
from bench.running_system import make_topic, running_system, settings_in
from bench.served_page import ServedPage
from bench.settled_state import prepare_settled
from bench.storage_costs import sampled_batches
from bench.text_tables import digits
from wakeroll.connection import Connection, close_producer
from wakeroll.epoch_ms import EpochMs, now_ms
from wakeroll.errors import WakerollError
from wakeroll_model.rows import EVENTS, SNAPSHOTS
from wakeroll_pipeline.kafka.control_topics import ensure_topics
from wakeroll_pipeline.kafka.topic_admin import Cluster, Racks
from wakeroll_pipeline.ledger.duck_ledger import duck_ledger
from wakeroll_pipeline.local.broker import EmbeddedBroker
from wakeroll_pipeline.local.child_process import Child
from wakeroll_pipeline.runtime.run_status import read_status
from wakeroll_pipeline.settings import Settings

MEMBERS = 10_000
EACH = 10
"""Members of a group."""
QUIET_MEMBERS, QUIET_RATE = 100, 10
"""About those of a demo. A member must send a heartbeat within its session of 45 s."""
RATE = 10_000
SECONDS = 150.0
ROUNDS = 5
_SLOTS = 20
"""Parts of a second, over which the heartbeats of a second are spread."""
_LIMIT_S = 300.0
_TAKEN = re.compile(r"snapshots of \d+ shards in ([0-9.]+) s")

Beats = Sequence[tuple[str, bytes]]
"""Group and record of the heartbeat of each member."""


def main(arguments: list[str] | None = None) -> int:
    """Measure and report; return 1 if a part failed."""
    parser = argparse.ArgumentParser(prog="python -m bench.any_moment", description=__doc__.splitlines()[0])
    parser.add_argument("--members", type=int, default=MEMBERS, help="of the shard (%(default)s)")
    parser.add_argument("--rate", type=int, default=RATE, help="heartbeats per second (%(default)s)")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of load before the questions (%(default)g)")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="of each question (%(default)s)")
    parser.add_argument("--folder", type=Path, default=Path(".wakeroll/bench-moments"), help="emptied (%(default)s)")
    parser.add_argument("--json", type=Path, default=moment_figures.MOMENTS, help="where the figures go (%(default)s)")
    given = parser.parse_args(arguments)
    machine = this_machine()
    if not machine.is_quiet:
        print(f"the load average is {machine.load:g}; from {QUIET_LOAD:g} on the figures do not count")
    shutil.rmtree(given.folder, ignore_errors=True)
    try:
        with EmbeddedBroker(given.folder / "broker") as broker:
            quiet, busy = (
                _Deployment(settings_in(given.folder, name, broker), members, rate).measure(given.seconds, given.rounds)
                for name, members, rate in (("quiet", QUIET_MEMBERS, QUIET_RATE), ("busy", given.members, given.rate))
            )
    except WakerollError as problem:
        print(problem, file=sys.stderr)
        return 1
    write(Moments(machine, quiet, busy), given.json)
    if given.json == moment_figures.MOMENTS:
        report.make()
    return 0


class _Deployment:
    """A system with a settled shard and a steady load, and the questions that it is asked."""

    def __init__(self, settings: Settings, members: int, rate: int) -> None:
        self._settings = structs.replace(settings, partitions=1)
        self._members = members
        self._rate = rate
        self._answers: dict[str, list[float]] = {}
        self._behind: dict[str, list[int]] = {}
        self._pages = 0

    def measure(self, seconds: float, rounds: int) -> Load:
        """Run the system, ask, and return the figures."""
        settings = self._settings
        ensure_topics(settings.connection, partitions=1, inbox_partitions=settings.inbox_partitions)
        population = prepare_settled(settings, self._members // EACH, EACH, now_ms())
        # Without its topics, the observer would report them as missing, and each heartbeat would be answered.
        known = Cluster(settings.connection).racks(sorted(set(population.topics.values())))
        for topic in [name for name, racks in known.items() if not isinstance(racks, Racks) or not racks]:
            make_topic(settings.connection, topic, EACH)
        beats = [(who[0], msgspec.json.encode(population.beat(*who))) for who in population.everybody()]
        with running_system(settings) as connection, _flood(connection, beats, self._rate):
            began_s = time.monotonic()
            time.sleep(seconds)
            with sampled_batches(settings) as batches:
                self._ask(rounds)
                self._ask_replica()
            lasted_s = time.monotonic() - began_s
            status = read_status(settings.work_folder)
            assert status is not None, "`run` is ready"
        # The same deployment when nothing else works on the machine, as for a reader on another one.
        during, self._answers = self._answers, {}
        self._ask(rounds)
        rested, self._answers = self._answers, during
        with duck_ledger(settings.warehouse) as ledger:
            [count] = ledger.rows("select count(*) as records from events")
        stored = {table.name: _size(settings.warehouse.path / table.name) for table in (EVENTS, SNAPSHOTS)}
        shutil.rmtree(settings.checkpoints)
        for _ in range(rounds):
            self._command("spark", "sql", "select 1", "--engine", "spark")
            self._command("restore", "restore", "--bootstrap", settings.bootstrap)
        taken = [float(one) for one in _TAKEN.findall((settings.logs / "run.log").read_text(encoding="utf-8"))]
        return Load(
            beats_per_s=self._rate,
            members=self._members,
            groups=self._members // EACH,
            state_bytes=sum(status.states.values()),
            seconds=lasted_s,
            answers_s=self._answers,
            rested_s=rested,
            behind=self._behind,
            batch_ms=median(batches["coordinate"]),
            snapshots_s=taken,
            stored_bytes=stored,
            records=count.records,
        )

    def _ask(self, rounds: int) -> None:
        live = ("--bootstrap", self._settings.bootstrap)
        for _ in range(rounds):
            self._command("imports", "state", "--help")
            self._note_behind("state", self._recorded)
            self._command("state", "state")
            self._note_behind("state_live", self._ends)
            self._command("state_live", "state", *live)
            self._note_behind("watch", self._ends)
            self._command("watch", "watch", "--once", *live)

        for number in range(rounds):
            self._pages += 1
            log = self._settings.logs / f"serve-{self._pages}.log"
            self._note_behind("serve", self._ends)
            began_s = time.monotonic()
            with ServedPage(self._settings, log) as page:
                page.until_ready()
                self._note("serve", time.monotonic() - began_s)
                if number == 0:
                    self._move_slider(page.address, rounds)

    def _move_slider(self, address: str, rounds: int) -> None:
        with duck_ledger(self._settings.warehouse) as ledger:
            [extent] = ledger.rows("select min(at_ms) as first_ms, max(at_ms) as last_ms from events")
        for number in range(rounds):
            at_ms = extent.first_ms + (extent.last_ms - extent.first_ms) * (number + 1) // (rounds + 1)
            began_s = time.monotonic()
            text = _get(address, f"/?at={quote(str(EpochMs(at_ms)))}")
            self._note("slider", time.monotonic() - began_s)
            told = re.search(r"and ([0-9,]+) later records", text)
            assert told is not None, "the page shows how it was made"
            self._behind.setdefault("slider", []).append(int(told[1].replace(",", "")))

    def _ask_replica(self) -> None:
        """Start a second coordinator, and wait until it has decided the records that there were."""
        settings = structs.replace(self._settings, replica="b", work=str(self._settings.work_folder / "replica"))
        replica = Child(
            "wakeroll run --replica b",
            [sys.executable, "-m", "wakeroll_pipeline.cli", "run", "--only", "coordinate"],
            log=self._settings.logs / "run-b.log",
            env={**os.environ, **settings.environment()},
            grace_s=60,
        )
        place, end = f"{settings.connection.topics.groups}-0", self._ends()

        def has_reached() -> bool:
            status = read_status(settings.work_folder, "b")
            return status is not None and status.marks.get(place, (-1, 0))[0] >= end - 1

        self._note_behind("replica", self._ends)
        began_s = time.monotonic()
        with replica:
            replica.wait_until(has_reached, _LIMIT_S)
            self._note("replica", time.monotonic() - began_s)

    def _command(self, name: str, *arguments: str) -> None:
        env = {**os.environ, **structs.replace(self._settings, bootstrap="").environment()}
        began_s = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-m", "wakeroll_pipeline.cli", *arguments],
            env=env,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise WakerollError(f"{' '.join(arguments)} ended with {done.returncode}: {done.stderr[-2_000:]}")
        self._note(name, time.monotonic() - began_s)

    def _note(self, name: str, seconds: float) -> None:
        self._answers.setdefault(name, []).append(round(seconds, 3))
        print(f"{self._rate:,}/s: {name} {digits(seconds)} s", flush=True)

    def _note_behind(self, name: str, end: Callable[[], int]) -> None:
        """Note how many records of the groups' topic follow the newest snapshot of those before an end."""
        last = end()
        with duck_ledger(self._settings.warehouse) as ledger:
            [newest] = ledger.rows(
                'select max("offset") as reached from snapshots where topic = $topic and "offset" < $last',
                topic=self._settings.connection.topics.groups,
                last=last,
            )
        self._behind.setdefault(name, []).append(last - (newest.reached or 0))

    def _recorded(self) -> int:
        """Return the number of records of the groups' topic in the tables."""
        with duck_ledger(self._settings.warehouse) as ledger:
            [row] = ledger.rows(
                'select max("offset") + 1 as reached from events where topic = $topic',
                topic=self._settings.connection.topics.groups,
            )
        return int(row.reached)

    def _ends(self) -> int:
        """Return the number of records of the groups' topic in Kafka."""
        place = (self._settings.connection.topics.groups, 0)
        return Cluster(self._settings.connection).all_offsets([place])[place][1]


@contextmanager
def _flood(connection: Connection, beats: Beats, rate: int) -> Iterator[None]:
    """Send heartbeats, of one member after the other, during a `with` block."""
    ended = threading.Event()

    def send() -> None:
        producer, sent, began_s = connection.producer(log_level=0), 0, time.monotonic()
        while not ended.wait(1 / _SLOTS):
            due = int((time.monotonic() - began_s) * rate)
            for number in range(sent, due):
                group_id, value = beats[number % len(beats)]
                producer.produce(connection.topics.groups, value, key=group_id)
            producer.poll(0)
            sent = max(sent, due)
        close_producer(producer, 5)

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _get(address: str, path: str) -> str:
    parts = urlsplit(address)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=_LIMIT_S)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        text = answer.read().decode()
    finally:
        connection.close()
    if answer.status != http.HTTPStatus.OK:
        raise WakerollError(f"GET {path} was answered with {answer.status}: {text[-2_000:]}")
    return text


def _size(table: Path) -> int:
    return sum(file.stat().st_size for file in table.rglob("*.parquet") if "_delta_log" not in file.parts)


if __name__ == "__main__":
    sys.exit(main())
