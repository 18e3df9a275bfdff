"""The time to show the state at any moment, with the load of a demo and with 10,000 heartbeats per second.

The heartbeats change nothing, as most heartbeats.
"""

import os
import re
import shutil
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from urllib.parse import quote

from msgspec import Struct, structs

from bench.frame import Bench, Chapter, option, whole
from bench.machine import Machine
from bench.running_system import command_s, running_system, sampled_batches, settings_in
from bench.served_page import ServedPage
from bench.steady_load import EACH, flood, settle
from bench.text_tables import Columns, digits, table_of
from wakeroll.epoch_ms import EpochMs
from wakeroll_model.rows import EVENTS, SNAPSHOTS
from wakeroll_pipeline.kafka.topic_admin import Cluster
from wakeroll_pipeline.ledger.duck_ledger import duck_ledger
from wakeroll_pipeline.local.broker import EmbeddedBroker
from wakeroll_pipeline.local.child_process import Child
from wakeroll_pipeline.runtime.run_status import read_status
from wakeroll_pipeline.settings import Settings

QUIET_MEMBERS, QUIET_RATE = 100, 10
"""About those of a demo. A member must send a heartbeat within its session of 45 s."""
_LIMIT_S = 300.0
_TAKEN = re.compile(r"snapshots of \d+ shards in ([0-9.]+) s")

QUESTIONS: Mapping[str, str] = {
    "imports": "`--help`: the start of Python, and its imports",
    "state": "`state`, from the tables",
    "state_live": "`state --bootstrap`, from the brokers",
    "watch": "`watch --once`",
    "serve": "`serve`, until it is ready",
    "slider": "the page at an earlier moment",
    "spark": "a Spark session alone, which `restore` and `run` need",
    "restore": "`restore`",
    "replica": "`run --replica b`, until it has reached the end of the log",
}
"""Name of a question in the figures -> its row in the page, in the order of the page."""


class Load(Struct, frozen=True):
    """Answers while one deployment runs, and after it."""

    beats_per_s: int
    members: int
    groups: int
    state_bytes: int
    """Size of the states of all shards."""
    seconds: float
    """Time of the load before the first question (s)."""
    answers_s: dict[str, list[float]]
    """Question, see `QUESTIONS` -> durations of its rounds (s)."""
    rested_s: dict[str, list[float]]
    """The same after the load, when the system has stopped; the tables and the log are those of the load."""
    behind: dict[str, list[int]]
    """Question -> records between the newest snapshots, or those before the moment, and the end of what it read."""
    batch_ms: float
    """Median duration of a batch of `coordinate` (ms)."""
    snapshots_s: list[float]
    """Durations of all snapshots (s), as the log of `run` says."""
    stored_bytes: dict[str, int]
    """Table -> bytes of its files, for those that grow with the load: `events` and `snapshots`."""
    records: int
    """Records of the control topics in the tables."""


class Moments(Struct, frozen=True):
    """All of it."""

    machine: Machine
    quiet: Load
    """With the load of a demo."""
    busy: Load


_PRICES: Columns[Load] = (
    ("load", lambda one: f"{one.beats_per_s:,} heartbeats/s"),
    ("snapshots", lambda one: f"{len(one.snapshots_s)}"),
    ("each", lambda one: _seconds(one.snapshots_s) if one.snapshots_s else "-"),
    ("share of the time", lambda one: f"{100 * sum(one.snapshots_s) / one.seconds:.1f} %"),
    ("`snapshots`, bytes per record", lambda one: digits(one.stored_bytes.get("snapshots", 0) / max(one.records, 1))),
    ("`events`", lambda one: digits(one.stored_bytes.get("events", 0) / max(one.records, 1))),
    ("batch", lambda one: f"{one.batch_ms:,.0f} ms"),
)


def section(found: Moments) -> str:
    """Return the chapter of these figures."""
    quiet, busy = found.quiet, found.busy
    return f"""\
The busy shard has {busy.members:,} members in {busy.groups:,} groups ({busy.state_bytes / 1e6:.1f} MB of state), which
send {busy.beats_per_s:,} heartbeats per second. The quiet one, as in a demo, has {quiet.members:,} members in
{quiet.groups:,} groups and {quiet.beats_per_s:,} heartbeats per second. The broker, the observer, `wakeroll run` and
the producer of the heartbeats share the machine with the questions, which are asked while the load goes on. Then the
system is stopped, and they are asked again, as by a reader on another machine; `restore` and its Spark session are
measured only then. Each command runs in a process of its own, and the times include its start. A time is the median of
its rounds, and the longest one is in brackets. *Ratio* compares the time after the load, or if there is none, the time
during it, with the quiet one. *Records to apply* are those between the snapshots and the end of what is read, the most
of all rounds.

{_answers(quiet, busy)}

The price of the snapshots:

{table_of(_PRICES, (quiet, busy))}

Measured on {found.machine.measured} with {found.machine.sentence}.
"""


def _answers(quiet: Load, busy: Load) -> str:
    rate = f"{busy.beats_per_s:,}/s"
    columns: Columns[str] = (
        ("question", QUESTIONS.__getitem__),
        (f"{quiet.beats_per_s:,} heartbeats/s", lambda name: _seconds(quiet.answers_s[name])),
        (rate, lambda name: _seconds(busy.answers_s[name])),
        (f"after {rate}", lambda name: _seconds(busy.rested_s[name]) if name in busy.rested_s else ""),
        (
            "ratio",
            lambda name: digits(_middle((busy.answers_s | busy.rested_s)[name]) / _middle(quiet.answers_s[name])),
        ),
        ("records to apply", lambda name: _most(quiet.behind.get(name, ()))),
        (f"with {rate}", lambda name: _most(busy.behind.get(name, ()))),
    )
    return table_of(columns, [name for name in QUESTIONS if name in quiet.answers_s and name in busy.answers_s])


def _middle(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2]


def _seconds(values: Sequence[float]) -> str:
    return f"{_middle(values):.2f} s ({max(values):.2f} s)"


def _most(values: Sequence[int]) -> str:
    return f"{max(values):,}" if values else ""


def measure(given: Namespace) -> Moments:
    """Measure a quiet deployment, then a busy one."""
    with EmbeddedBroker(given.folder / "broker") as broker:
        quiet, busy = (
            _Deployment(settings_in(given.folder, name, broker), members, rate).measure(given.seconds, given.rounds)
            for name, members, rate in (("quiet", QUIET_MEMBERS, QUIET_RATE), ("busy", given.members, given.rate))
        )
    return Moments(given.machine, quiet, busy)


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
        beats = settle(settings, self._members)
        with running_system(settings) as connection, flood(connection, beats, self._rate):
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
        records = self._asked("select count(*) as found from events")
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
            records=records,
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
                    self._move_slider(page, rounds)

    def _move_slider(self, page: ServedPage, rounds: int) -> None:
        first_ms, last_ms = (self._asked(f"select {edge}(at_ms) as found from events") for edge in ("min", "max"))
        for number in range(rounds):
            at_ms = first_ms + (last_ms - first_ms) * (number + 1) // (rounds + 1)
            began_s = time.monotonic()
            text = page.get(f"/?at={quote(str(EpochMs(at_ms)))}", _LIMIT_S)
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
        self._note(name, command_s(structs.replace(self._settings, bootstrap=""), *arguments))

    def _note(self, name: str, seconds: float) -> None:
        self._answers.setdefault(name, []).append(round(seconds, 3))
        print(f"{self._rate:,}/s: {name} {digits(seconds)} s", flush=True)

    def _note_behind(self, name: str, end: Callable[[], int]) -> None:
        """Note how many records of the groups' topic follow the newest snapshot of those before an end."""
        last = end()
        newest = self._asked(
            'select max("offset") as found from snapshots where topic = $topic and "offset" < $last', last=last
        )
        self._behind.setdefault(name, []).append(last - newest)

    def _recorded(self) -> int:
        """Return the number of records of the groups' topic in the tables."""
        return self._asked('select max("offset") + 1 as found from events where topic = $topic')

    def _ends(self) -> int:
        """Return the number of records of the groups' topic in Kafka."""
        place = (self._settings.connection.topics.groups, 0)
        return Cluster(self._settings.connection).all_offsets([place])[place][1]

    def _asked(self, query: str, **values: int | str) -> int:
        """Return what the tables have for a query with one number, about the groups' topic; 0 if there is none."""
        if "$topic" in query:
            values |= {"topic": self._settings.connection.topics.groups}
        with duck_ledger(self._settings.warehouse) as ledger:
            [row] = ledger.rows(query, **values)
        return int(row.found or 0)


def _size(table: Path) -> int:
    return sum(file.stat().st_size for file in table.rglob("*.parquet") if "_delta_log" not in file.parts)


BENCH = Bench(
    "any_moment",
    "The state at any moment with 10,000 heartbeats per second.",
    "a quarter of an hour",
    measure,
    options=(
        option("--members", type=whole, default=10_000, help="of the shard"),
        option("--rate", type=whole, default=10_000, help="heartbeats per second"),
        option("--seconds", type=float, default=150.0, help="of load before the questions"),
        option("--rounds", type=whole, default=5, help="of each question"),
    ),
    chapters=(Chapter("The state at any moment", section),),
    figures=Moments,
    file="moments.json",
    run="The run of any moment",
)
