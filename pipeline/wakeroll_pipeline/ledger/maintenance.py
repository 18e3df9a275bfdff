"""Upkeep of the Delta tables: compaction, retention of rows, and removal of expired versions.

`record` runs one step after a batch, in the thread that appends.  Two processes that write one local table could lose
each other's commits, and a step that runs between appends has no conflict.  Each step is one Delta commit, or deletes
files that no kept version needs.  So a crash is harmless at any point: the next round finds the remaining work.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import date
from functools import partial
from threading import Lock

from wakeroll.epoch_ms import now_ms
from wakeroll_model.rows import SNAPSHOTS, TABLES, Table
from wakeroll_pipeline.ledger.compaction import compact
from wakeroll_pipeline.ledger.daily_facts import missing_days, write_day
from wakeroll_pipeline.ledger.expired_versions import delete_expired
from wakeroll_pipeline.ledger.retention import DAY_MS, Past, Rewriting, forget, past_of
from wakeroll_pipeline.ledger.table_creation import path_of
from wakeroll_pipeline.settings import Settings

APPENDING = Lock()
"""Lock of the `snapshots` table: one thread of the process appends snapshots, another thread maintains the tables."""

log = logging.getLogger("wakeroll.upkeep")

Step = Callable[[], None]
Report = Callable[[str, float, bool], None]
"""Receives the name of a step, its duration in seconds, and whether it succeeded."""


class Upkeep:
    """Upkeep of a warehouse, by the only process that writes it."""

    def __init__(
        self,
        settings: Settings,
        report: Report | None = None,
        rewriting: Rewriting = lambda _table, _ends: nullcontext(),
        finish: Callable[[Table], None] = lambda _table: None,
        tables: Sequence[Table] = tuple(TABLES.values()),
    ) -> None:
        """Prepare.

        Args:
            settings: settings of the deployment.
            report: receives each step.
            rewriting: surrounds a deletion of rows.
            finish: called for each table before the first deletion, because an earlier deletion may have been
                interrupted.
            tables: the existing tables, in the order of `wakeroll_model.rows.TABLES`.
        """
        self._tables = tuple(tables)
        self._rewriting = rewriting
        self._finish = finish
        self._settings = settings
        self._report = report
        self._steps: deque[tuple[str, Step]] = deque()
        begin_s = time.monotonic() + settings.upkeep_interval_ms / 1_000
        # The first round after a start does everything: the time of the last round is not recorded.
        self._round_s = self._clean_s = self._forget_s = begin_s

    def step(self) -> None:
        """Run one step if one is due.

        A step handles one table and takes seconds at most.  A step that fails logs a warning, and is repeated in the
        next round.
        """
        now_s = time.monotonic()
        if not self._steps and now_s >= self._round_s:
            self._plan(now_s)
        if not self._steps:
            return
        self._run_next()

    def delete_old_rows(self) -> dict[str, Exception]:
        """Delete the rows that are older than the retention now, even if no deletion is due.

        Returns:
            Step that failed -> its error. Later steps were not run.
        """
        self._steps = deque([("find old rows", self._find_old)])
        failed: dict[str, Exception] = {}
        while self._steps:
            what, error = self._run_next()
            if error is not None:
                failed[what] = error
        return failed

    def _run_next(self) -> tuple[str, Exception | None]:
        """Run the next step, and report it; return its name, and its error if it failed."""
        began_s = time.monotonic()
        what, do = self._steps.popleft()
        failure: Exception | None = None
        try:
            do()
        except Exception as error:  # no failure of upkeep may stop the recording of decisions
            failure = error
            log.warning("upkeep failed to %s, and will try again: %s", what, str(error).partition("\n")[0])
        taken_s = time.monotonic() - began_s
        if failure is None:
            log.debug("upkeep: %s in %.1f s", what, taken_s)
        if self._report is not None:
            self._report(what, taken_s, failure is None)
        return what, failure

    def _plan(self, now_s: float) -> None:
        settings = self._settings
        self._round_s = now_s + settings.upkeep_interval_ms / 1_000
        if now_s >= self._forget_s:
            self._steps.append(("find old rows", self._find_old))
        self._steps += self._of_each_table("compact", self._compact)
        if now_s >= self._clean_s:
            self._clean_s = now_s + settings.keep_versions_ms / 1_000
            self._steps += self._of_each_table("clean", self._clean)

    def _of_each_table(self, what: str, do: Callable[[Table], None]) -> list[tuple[str, Step]]:
        return [(f"{what} {table.name}", partial(do, table)) for table in self._tables]

    def _compact(self, table: Table) -> None:
        with _alone_with(table):
            has_more = compact(path_of(self._settings.warehouse, table), table)
        if has_more:
            self._steps.appendleft((f"compact {table.name}", partial(self._compact, table)))

    def _clean(self, table: Table) -> None:
        with _alone_with(table):
            delete_expired(path_of(self._settings.warehouse, table), self._settings.keep_versions_ms, now_ms())

    def _find_old(self) -> None:
        self._write_next(missing_days(self._settings.warehouse))

    def _write_next(self, days: Sequence[date]) -> None:
        """Schedule the facts of each day, and then the deletion; after a failure, both wait for the next round."""
        if not days:
            self._steps.appendleft(("choose old rows", self._choose_old))
            return

        def write_first() -> None:
            settings = self._settings
            write_day(settings.warehouse, days[0], settings.keep_versions_ms, now_ms())
            self._write_next(days[1:])

        self._steps.appendleft((f"write the facts of {days[0]}", write_first))

    def _choose_old(self) -> None:
        settings = self._settings
        past = past_of(
            settings.warehouse,
            now_ms(),
            settings.keep_events_ms,
            settings.keep_decisions_ms,
            keep_snapshots_ms=settings.keep_snapshots_ms,
            keep_snapshots=settings.keep_snapshots,
        )
        self._forget_next(past, self._tables)

    def _forget_next(self, past: Past, tables: tuple[Table, ...]) -> None:
        """Schedule the deletion of old rows, table by table; after a failure, the rest waits for the next round."""
        if not tables:
            self._forget_s = time.monotonic() + DAY_MS / 1_000
            return

        def forget_first() -> None:
            with _alone_with(tables[0]):
                self._finish(tables[0])
                forget(self._settings.warehouse, tables[0], past, self._rewriting)
            self._forget_next(past, tables[1:])

        self._steps.appendleft((f"delete old rows of {tables[0].name}", forget_first))


def _alone_with(table: Table) -> AbstractContextManager[object]:
    """Return the lock that keeps other threads from appending; only `snapshots` has another thread that appends."""
    return APPENDING if table is SNAPSHOTS else nullcontext()
