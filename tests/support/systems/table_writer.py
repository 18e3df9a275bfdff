"""A process that writes a table in its turn: `python -m tests.support.systems.table_writer BOOTSTRAP HOME NAME [STEP]`.

It waits for the lease in Kafka, takes its turn, and appends the numbers below the one in the file ``HOME/source``, two
per batch, until that is negative. It needs no Spark, and marks its batches as done as Spark does. Before a step, such
as ``append``, it suspends itself. It appends a line to ``HOME/NAME.log`` whenever an append has returned.
"""

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

from tests.support.suspended_writers import SOURCE, TOPIC, offsets, rows_in
from wakeroll.errors import WakerollError
from wakeroll_model.rows import EVENTS, SNAPSHOTS, EventRow, SnapshotRow
from wakeroll_pipeline.ledger.arrow_schemas import arrow_schema_of, arrow_table
from wakeroll_pipeline.ledger.table_creation import path_of
from wakeroll_pipeline.recovery import write_turn
from wakeroll_pipeline.recovery.checkpoint_state import last_batch, progress_of
from wakeroll_pipeline.recovery.write_turn import WriteTurn
from wakeroll_pipeline.runtime.deciding_queries import RECORD
from wakeroll_pipeline.runtime.process_locks import process_locks
from wakeroll_pipeline.settings import Settings
from wakeroll_pipeline.sinks import arrow_sink, table_fence
from wakeroll_pipeline.sinks.arrow_sink import ArrowSink
from wakeroll_pipeline.storage import small_files

LEASE_MS = 1_500
STEPS = ("turn", "number", "fence", "checkpoint", "append", "appended", "done")
"""Steps from the lease to the mark of a batch, before which a process can be suspended."""
_BATCH = 2
_PAUSE_S = 0.02


def settings_of(bootstrap: str, home: Path) -> Settings:
    """Return the settings of the deployment in a folder."""
    return Settings(
        home=str(home / "tables"),
        checkpoints=str(home / "checkpoints"),
        work=str(home / "work"),
        bootstrap=bootstrap,
        prefix=f"writers-{home.name}",
        partitions=1,
        locks="lease",
        lease_ms=LEASE_MS,
    )


def make_tables(settings: Settings) -> None:
    """Create the tables, without rows."""
    for table, row in ((EVENTS, EventRow), (SNAPSHOTS, SnapshotRow)):
        DeltaTable.create(str(path_of(settings.warehouse, table)), arrow_schema_of(row))


def write(settings: Settings, home: Path, name: str, stops: Callable[[str], None]) -> None:
    """Wait for the turn, and write."""
    with process_locks(settings, [RECORD], stands_by=True) as locks, (home / f"{name}.log").open("a", 1) as log:
        while not locks.has_turn():
            time.sleep(_PAUSE_S)
        stops("turn")
        turn = WriteTurn(settings, locks.turn_lease)
        stops("checkpoint")
        turn.forget_earlier()
        checkpoint = settings.checkpoint(turn.checkpoint)
        before = progress_of(settings.checkpoint(turn.before))
        begin = 0 if before is None else before.next[SOURCE]
        written = rows_in(path_of(settings.warehouse, EVENTS))["offset"].to_pylist()
        highest = max(written, default=-1)
        sink = ArrowSink(turn.number)
        small_files.write(checkpoint.child("sources", "0", "0"), offsets(begin))
        print(f"writes {turn.number}", file=log)
        while (end := int((home / "source").read_text())) >= 0:
            if begin >= end:
                time.sleep(_PAUSE_S)
                locks.raise_if_lost()
                continue
            end, batch = min(begin + _BATCH, end), last_batch(checkpoint) + 1
            assert small_files.create(checkpoint.child("offsets", str(batch)), offsets(end))
            turn.confirm()
            fresh = [offset for offset in range(begin, end) if offset > highest]
            if fresh:
                rows = [
                    EventRow(topic=TOPIC, partition=0, offset=at, at_ms=1, key=name.encode(), value=b"", type=None)
                    for at in fresh
                ]
                sink.append(arrow_table(EventRow, rows), path_of(settings.warehouse, EVENTS))
                print(f"appended {' '.join(map(str, fresh))}", file=log)
                highest = fresh[-1]
            stops("appended")
            turn.confirm()
            stops("done")
            assert small_files.create(checkpoint.child("commits", str(batch)), b"v1\n{}")
            begin = end


def stopper(step: str) -> Callable[[str], None]:
    """Return a function that suspends this process when it is called with this step for the first time."""
    due = [step] if step else []

    def stops(at: str) -> None:
        if due == [at]:
            due.clear()
            os.kill(os.getpid(), signal.SIGSTOP)

    return stops


def main() -> int:
    """Run the process; return 3 if it is not its turn any more."""
    bootstrap, folder, name, *step = sys.argv[1:]
    home, stops = Path(folder), stopper(step[0] if step else "")

    def stopping(module: Any, function: str, at: str) -> None:
        do = getattr(module, function)

        def stop_first(*args: Any, **named: Any) -> Any:
            stops(at)
            return do(*args, **named)

        setattr(module, function, stop_first)

    stopping(write_turn, "turn_number", "number")
    stopping(table_fence, "_raise", "fence")
    stopping(arrow_sink, "write_deltalake", "append")
    try:
        write(settings_of(bootstrap, home), home, name, stops)
    except WakerollError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
