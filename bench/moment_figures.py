"""The figures of the state at any moment, and their chapter."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from bench.machine import Machine
from bench.text_tables import digits, table

MOMENTS = Path(__file__).parent / "moments.json"

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


def section(found: Moments | None) -> str:
    """Return the chapter of these figures."""
    if found is None:
        return "Not measured yet: `python -m bench.any_moment`, on a quiet machine, takes a quarter of an hour.\n"
    quiet, busy = found.quiet, found.busy
    rows = [
        (
            text,
            _seconds(quiet.answers_s[name]),
            _seconds(busy.answers_s[name]),
            _seconds(busy.rested_s[name]) if name in busy.rested_s else "",
            digits(_middle(busy.rested_s.get(name, busy.answers_s[name])) / _middle(quiet.answers_s[name])),
            _most(quiet.behind.get(name, ())),
            _most(busy.behind.get(name, ())),
        )
        for name, text in QUESTIONS.items()
        if name in quiet.answers_s and name in busy.answers_s
    ]
    heads = (
        "question",
        f"{quiet.beats_per_s:,} heartbeats/s",
        f"{busy.beats_per_s:,}/s",
        f"after {busy.beats_per_s:,}/s",
        "ratio",
        "records to apply",
        f"with {busy.beats_per_s:,}/s",
    )
    prices = table(
        ("load", "snapshots", "each", "share of the time", "`snapshots`, bytes per record", "`events`", "batch"),
        [_price(load) for load in (quiet, busy)],
    )
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

{table(heads, rows)}

The price of the snapshots:

{prices}

Measured on {found.machine.measured} with {found.machine.sentence}.
"""


def _price(load: Load) -> tuple[str, ...]:
    count = len(load.snapshots_s)
    per_record = {name: size / max(load.records, 1) for name, size in load.stored_bytes.items()}
    return (
        f"{load.beats_per_s:,} heartbeats/s",
        f"{count}",
        _seconds(load.snapshots_s) if count else "-",
        f"{100 * sum(load.snapshots_s) / load.seconds:.1f} %",
        digits(per_record.get("snapshots", 0.0)),
        digits(per_record.get("events", 0.0)),
        f"{load.batch_ms:,.0f} ms",
    )


def _middle(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2]


def _seconds(values: Sequence[float]) -> str:
    return f"{_middle(values):.2f} s ({max(values):.2f} s)"


def _most(values: Sequence[int]) -> str:
    return f"{max(values):,}" if values else ""
