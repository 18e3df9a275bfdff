"""Writers of tables that are suspended anywhere between their lease and their commit, one after the other.

The lease is decided by the real model on a list of records, the turn, the fence and the sink are the real ones, and the
tables are real Delta tables. A debugger stops a process before any line of these modules. What Spark does with a
checkpoint is done here: it plans a batch, calls the sink, and marks the batch as done.
"""

import json
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable

from wakeroll_model.lease_contender import Contender
from wakeroll_model.lease_log import decode, encode
from wakeroll_model.rows import EVENTS, SNAPSHOTS, EventRow, SnapshotRow
from wakeroll_pipeline.ledger.arrow_schemas import arrow_schema_of, arrow_table
from wakeroll_pipeline.ledger.table_creation import path_of
from wakeroll_pipeline.recovery import write_turn
from wakeroll_pipeline.recovery.checkpoint_state import last_batch, progress_of
from wakeroll_pipeline.recovery.write_turn import WriteTurn
from wakeroll_pipeline.runtime.lease_keeper import LeaseLost
from wakeroll_pipeline.settings import Settings
from wakeroll_pipeline.sinks import arrow_sink, table_fence
from wakeroll_pipeline.sinks.arrow_sink import ArrowSink
from wakeroll_pipeline.sinks.table_fence import Fenced
from wakeroll_pipeline.storage import small_files
from wakeroll_pipeline.storage.place import Place

LEASE_MS = 10_000
STEP_MS = 250
TOPIC, SOURCE = "wakeroll.groups", ("wakeroll.groups", 0)
BATCH = 2
"""Records of a batch."""
_NO_ROWS = arrow_table(EventRow, [])
_TRACED = {module.__file__ for module in (write_turn, table_fence, arrow_sink)} | {__file__}


class Killed(BaseException):
    """The world ends while a process is suspended."""


class World:
    """A deployment: its tables and checkpoints, the log of its leases, and the log that is recorded."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.settings = Settings(home=str(home), checkpoints=str(home / "checkpoints"), partitions=1)
        for table, row in ((EVENTS, EventRow), (SNAPSHOTS, SnapshotRow)):
            if not home.exists() or not path_of(self.settings.warehouse, table).path.exists():
                DeltaTable.create(str(path_of(self.settings.warehouse, table)), arrow_schema_of(row))
        self.now_ms = 0
        self.log: list[bytes] = []
        self.log_id = "first"
        self.source = 0
        """Number of records that are to be recorded."""
        self.returned: dict[str, list[int]] = {}
        """Process -> offsets of the rows whose append returned."""
        self.ended: dict[str, str] = {}
        """Process -> how it ended: ``done``, or the name of an exception."""
        self.turns: list[tuple[str, str]] = []
        """Checkpoint of each turn, and the one that it follows, in the order in which they were taken."""

    def copied(self, home: Path) -> "World":
        """Return a copy of this world, in which no process runs."""
        shutil.copytree(self.home, home)
        other = World(home)
        other.now_ms, other.log, other.source = self.now_ms, list(self.log), self.source
        other.returned, other.ended = {name: list(its) for name, its in self.returned.items()}, dict(self.ended)
        return other

    def recreate_the_topic(self) -> None:
        """Delete the topic of the leases, and create it again."""
        self.log, self.log_id = [], self.log_id + "'"

    def lose_the_tail(self, count: int) -> None:
        """Lose the last records of the leases."""
        del self.log[len(self.log) - count :]

    def rows(self) -> pa.Table:
        """Return the rows that were recorded, in the order of their offsets."""
        return rows_in(path_of(self.settings.warehouse, EVENTS))


class Lease:
    """What a turn uses of `ProcessLease`, without a thread: a question first reads the log and appends what is due."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.suspended_ms = 0
        """For how long the clock of this process stood still."""
        self._log_id = world.log_id
        self._read = -1
        self._is_doubtful = False
        self._contender = Contender("record", name, LEASE_MS, self.now_ms, first=0, log=world.log_id)

    @property
    def now_ms(self) -> int:
        return self.world.now_ms - self.suspended_ms

    @property
    def term(self) -> int:
        return self._contender.term

    @property
    def log(self) -> str:
        return self._contender.lease.log

    @property
    def is_held(self) -> bool:
        """Whether this process may act, as far as it knows."""
        return self._contender.is_held(self.now_ms)

    def acquire(self) -> None:
        """Wait for the lease."""
        while not self.is_held:
            self.step()

    def confirm(self) -> None:
        while (state := self._contender.state(self.now_ms)) != "held":
            self._raise_if_gone(state)
            self.step()

    def prove(self) -> None:
        sent = self._contender.sent
        self._contender.renew_now()
        while not self._contender.has_proved(sent):
            self._raise_if_gone(self._contender.state(self.now_ms))
            self.step()
        self._look()
        self._raise_if_gone(self._contender.state(self.now_ms))

    def step(self) -> None:
        """Do what the thread of `LeaseKeeper` does in a moment."""
        self.world.now_ms += STEP_MS
        if len(self.world.log) <= self._read:
            self._begin_again()
            self._is_doubtful = True
        for offset in range(self._read + 1, len(self.world.log)):
            record = decode(self.world.log[offset])
            self._is_doubtful |= self._contender.lease.is_foreign(record)
            self._contender.read(offset, record)
            self._read = offset
        if self._is_doubtful:
            self._look()
        if (due := self._contender.next_record(self.now_ms, self._read)) is not None:
            self.world.log.append(encode(due))

    def end(self) -> None:
        if (last := self._contender.end(self.now_ms)) is not None:
            self.world.log.append(encode(last))

    def _look(self) -> None:
        if self._log_id != self.world.log_id:
            self._log_id = self.world.log_id
            self._begin_again()
        self._is_doubtful = False

    def _begin_again(self) -> None:
        self._contender.begin_again(0, self._log_id)
        self._read = -1

    def _raise_if_gone(self, state: str) -> None:
        if state in ("lost", "ended"):
            raise LeaseLost(state)


class Writer:
    """A process that records until there is nothing left. It can be suspended before any line of the modules."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        self.lease = Lease(world, name)
        self.lines: list[str] = []
        """The lines before which it could have been suspended, as they were executed."""
        self._stop_at = -1
        self._moved = threading.Condition()
        self._is_running = False
        self._is_killed = False
        self._thread = threading.Thread(target=self._live, name=name, daemon=True)

    @property
    def at(self) -> str:
        """The last of these lines."""
        return self.lines[-1]

    def run(self, stop_at: int = -1) -> bool:
        """Run it, to its end or until it is suspended before its line of this number; return whether it has ended."""
        self._stop_at = stop_at
        with self._moved:
            self._is_running = True
            if self._thread.ident is None:
                self._thread.start()
            self._moved.notify_all()
            self._moved.wait_for(lambda: not self._is_running)
        return self.name in self.world.ended

    def kill(self) -> None:
        """End it where it is."""
        self._is_killed = True
        if self._thread.ident is not None:
            if self.name not in self.world.ended:
                self.run()
            self._thread.join()

    def _live(self) -> None:
        sys.settrace(self._trace)
        try:
            self._record()
            how = "done"
        except (Fenced, LeaseLost) as error:
            how = type(error).__name__
        except Killed:
            how = "killed"
        except BaseException as error:
            how = f"{type(error).__name__}: {error}"
        finally:
            sys.settrace(None)
        with self._moved:
            self.world.ended[self.name] = how
            self._is_running = False
            self._moved.notify_all()

    def _trace(self, frame: FrameType, event: str, _: Any) -> Callable[..., Any] | None:
        if frame.f_code.co_filename not in _TRACED or frame.f_code.co_qualname.startswith(("Lease.", "World.")):
            return None
        if event == "line":
            self.lines.append(f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}")
            if len(self.lines) == self._stop_at:
                self._suspend()
        return self._trace

    def _suspend(self) -> None:
        with self._moved:
            self._is_running = False
            self._moved.notify_all()
            self._moved.wait_for(lambda: self._is_running)
        if self._is_killed:
            raise Killed

    def _record(self) -> None:
        """Do what `record` and Spark do."""
        world, settings = self.world, self.world.settings
        self.lease.acquire()
        turn = WriteTurn(settings, self.lease)
        turn.forget_earlier()
        world.turns.append((turn.checkpoint, turn.before))
        checkpoint = settings.checkpoint(turn.checkpoint)
        before = progress_of(settings.checkpoint(turn.before))
        begin = 0 if before is None else before.next[SOURCE]
        highest = self._highest()
        sink = ArrowSink(turn.number)
        small_files.write(checkpoint.child("sources", "0", "0"), offsets(begin))
        while begin < world.source:
            batch, end = last_batch(checkpoint) + 1, min(begin + BATCH, world.source)
            assert small_files.create(checkpoint.child("offsets", str(batch)), offsets(end))
            turn.confirm()
            fresh = [offset for offset in range(begin, end) if offset > highest]
            if fresh:
                sink.append(self._rows(fresh), path_of(settings.warehouse, EVENTS))
                world.returned.setdefault(self.name, []).extend(fresh)
                highest = fresh[-1]
            turn.confirm()
            assert small_files.create(checkpoint.child("commits", str(batch)), b"v1\n{}")
            begin = end
        self.lease.end()

    def _highest(self) -> int:
        found = pc.max(self.world.rows()["offset"]).as_py()
        return -1 if found is None else int(found)

    def _rows(self, written: list[int]) -> pa.Table:
        by = self.name.encode()
        return arrow_table(
            EventRow,
            [EventRow(topic=TOPIC, partition=0, offset=at, at_ms=1, key=by, value=b"", type=None) for at in written],
        )


def rows_in(events: Place) -> pa.Table:
    """Return the rows of a table `events`, in the order of their offsets."""
    files = DeltaTable(str(events)).file_uris()
    return pa.concat_tables([_NO_ROWS, *(pq.ParquetFile(file).read() for file in files)]).sort_by("offset")


def offsets(end: int) -> bytes:
    """Return a plan of a batch, as Spark writes it."""
    return f"v1\n{{}}\n{json.dumps({TOPIC: {'0': end}})}".encode()


class InTurn:
    """A pool whose threads run one after the other, in the thread that asks: the debugger sees them all."""

    def __init__(self, _: int) -> None:
        pass

    def __enter__(self) -> "InTurn":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def map(self, do: Callable[[Any], Any], items: Any) -> Iterator[Any]:
        done: list[Future[Any]] = []
        for item in items:
            done.append(Future())
            done[-1].set_result(do(item))
        return (one.result() for one in done)


@contextmanager
def suspended_later(*writers: Writer) -> Iterator[None]:
    """End all processes at the end of a world."""
    try:
        yield
    finally:
        for one in writers:
            one.kill()
