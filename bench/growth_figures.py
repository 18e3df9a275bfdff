"""Figures of the growth of a ledger, and their chapter."""

from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from bench.machine import Machine
from bench.text_tables import digits, table

GROWTH = Path(__file__).parent / "growth.json"


class Grown(Struct, frozen=True):
    """What a table got in the measured time."""

    rows: int
    appended: int
    """Bytes of the files that `record` wrote."""
    files: int
    compacted: int
    """Bytes of the same rows after a compaction."""


class Case(Struct, frozen=True):
    """A deployment, and the rows of some time."""

    groups: int
    members: int
    is_at_rest: bool
    seconds: int
    """Of the log."""
    tables: dict[str, Grown]
    records: int
    """Records of the control topics."""
    snapshot: int
    """Bytes of one snapshot of all shards in its table."""
    snapshots_per_hour: float
    batch_ms: list[float]
    """Durations of the batches of `record`, one for each of its intervals."""


class LedgerGrowth(Struct, frozen=True):
    """What `python -m bench.ledger_growth` found."""

    machine: Machine
    interval_s: int
    """Of the batches of `record`."""
    cases: list[Case]


def section(found: LedgerGrowth | None) -> str:
    """Return the chapter of these figures."""
    if found is None:
        return "Not measured yet: `python -m bench.ledger_growth` takes fifteen minutes.\n"
    heads = [
        "groups (members)",
        "seconds of the log",
        "records per hour",
        "rows of `events`",
        "of other tables",
        "MB per hour, appended",
        "compacted",
        "GB per day",
        "snapshots, GB",
        "files per hour",
        "batch of `record` ms",
    ]
    return f"""\
Groups of one to three members on the shards of one deployment, written by `record` every {found.interval_s} s, as
`run` does. At rest, there are ticks and heartbeats. With traffic, every member commits every 30 s if its queues have
grown, one group in ten waits for messages, and each second one client restarts, leaves or crashes, in the whole
deployment. The figures of an hour are those of some seconds of the log; the longer the log, the better its rows
compress. Upkeep compacts the appended files within minutes. A day is 24 hours of compacted rows. A snapshot contains
the state of all shards; it is taken every ten minutes, or after so many records that a reader has to apply. Retention
keeps the snapshots of one day, and a few of each earlier one.

{table(heads, _rows(found))}

Bytes per row after compaction, of the largest deployment with traffic: {_per_row(found.cases[-1])}.

Measured on {found.machine.measured} with {found.machine.sentence_with_load}
"""


def _rows(found: LedgerGrowth) -> Iterator[list[str]]:
    for one in found.cases:
        hours = one.seconds / 3_600
        of_events = one.tables["events"]
        others = [grown for name, grown in one.tables.items() if name != "events"]
        appended, compacted = (
            sum(getattr(of, what) for of in one.tables.values()) for what in ("appended", "compacted")
        )
        snapshots = one.snapshot * one.snapshots_per_hour
        yield [
            f"{one.groups:,} ({one.members:,}), {'at rest' if one.is_at_rest else 'with traffic'}",
            f"{one.seconds:,}",
            f"{one.records / hours:,.0f}",
            f"{of_events.rows / hours:,.0f}",
            f"{sum(other.rows for other in others) / hours:,.0f}",
            digits(appended / hours / 1e6),
            digits(compacted / hours / 1e6),
            digits(24 * compacted / hours / 1e9),
            digits(24 * snapshots / 1e9),
            f"{sum(grown.files for grown in one.tables.values()) / hours:,.0f}",
            digits(sorted(one.batch_ms)[len(one.batch_ms) // 2]),
        ]


def _per_row(case: Case) -> str:
    return ", ".join(
        f"`{name}` {digits(grown.compacted / grown.rows)}" for name, grown in case.tables.items() if grown.rows
    )
