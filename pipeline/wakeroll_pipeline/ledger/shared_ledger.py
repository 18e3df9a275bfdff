"""One open ledger for all threads of a process; it is opened again when the tables have new versions."""

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import duckdb
from deltalake.exceptions import DeltaError

from wakeroll.epoch_ms import EpochMs
from wakeroll.errors import InvalidUsage
from wakeroll_model.rows import EVENTS, SNAPSHOTS, Table
from wakeroll_pipeline.ledger.delta_files import bounds_of
from wakeroll_pipeline.ledger.duck_ledger import DuckLedger, open_ledger, whole_versions
from wakeroll_pipeline.ledger.ledger import UnreadableTable
from wakeroll_pipeline.ledger.period import Period
from wakeroll_pipeline.storage.cause_trees import in_one_line
from wakeroll_pipeline.storage.place import Folder, Place
from wakeroll_pipeline.storage.small_files import StorageFailed

CHECK_EVERY_S = 5.0
"""Interval in which the versions of the tables are compared with the open ones (s)."""


class SharedLedger:
    """The ledger of a warehouse. Any thread may use it; each query has its own cursor."""

    def __init__(self, warehouse: Folder) -> None:
        """Prepare; the first query opens the tables, so they may be created later."""
        self.warehouse = Place.of(warehouse)
        self._lock = threading.Lock()
        self._opened: DuckLedger | None = None
        """A ledger with only the table `snapshots`; None before it is needed."""
        self._whole: DuckLedger | None = None
        """A ledger with all tables; None before a query needs them, because it opens their files."""
        self._checked_s = 0.0
        self._extent: Period | None = None

    @contextmanager
    def cursor(self, only: Table | None = None) -> Iterator[DuckLedger]:
        """Provide the tables, in their newest versions or in versions that are at most `CHECK_EVERY_S` older.

        Args:
            only: `SNAPSHOTS`, if other tables are queried only by `DuckLedger.within`; None: all tables.

        Raises:
            InvalidUsage: the tables do not exist, or cannot be read.
        """
        try:
            with self._lock:
                cursor = (self._newest() if only is SNAPSHOTS else self._newest_whole()).cursor()
            try:
                yield cursor
            except duckdb.Error as error:
                if (damage := cursor.damage_behind(error)) is not None:
                    raise damage from error
                raise
            finally:
                cursor.close()
        except UnreadableTable as error:
            raise InvalidUsage(str(error)) from error
        except (duckdb.Error, DeltaError, OSError, StorageFailed) as error:
            raise InvalidUsage(f"cannot read the tables in {self.warehouse}: {in_one_line(error)}") from error

    def extent(self) -> Period:
        """Return the log time of the first and of the last archived record; both are None if there is no record.

        Raises:
            InvalidUsage: as `cursor`.
        """
        with self.cursor(SNAPSHOTS) as ledger:
            with self._lock:
                known = self._extent
            if known is None:
                known = extent_of(ledger)
                with self._lock:
                    if self._opened is not None and self._opened.versions == ledger.versions:
                        self._extent = known
        return known

    def close(self) -> None:
        """Free the memory; running queries fail."""
        with self._lock:
            for ledger in (self._opened, self._whole):
                if ledger is not None:
                    ledger.close()
            self._opened = self._whole = None

    def _newest_whole(self) -> DuckLedger:
        """Return the open ledger with all tables."""
        opened = self._newest()
        if self._whole is None:
            self._whole = opened.again()
        return self._whole

    def _newest(self) -> DuckLedger:
        """Return the open ledger; open it again if the tables have changed."""
        now_s = time.monotonic()
        if self._opened is not None and now_s - self._checked_s < CHECK_EVERY_S:
            return self._opened
        # A lost file that is back has no new version.
        opened = self._opened
        if opened is None or opened.unreadable or opened.versions != _versions(self.warehouse):
            opened = open_ledger(self.warehouse, at_one_moment=True, only=SNAPSHOTS)
            # The versions before are not closed, because that would close their cursors; they end with the last one.
            self._opened, self._whole, self._extent = opened, None, None
        self._checked_s = now_s
        return opened


def extent_of(ledger: DuckLedger) -> Period:
    """Return the log time of the first and of the last archived record; both are None if there is no record.

    Raises:
        UnreadableTable: the table `events` cannot be read.
    """
    if EVENTS.name in ledger.unreadable:
        raise ledger.unreadable[EVENTS.name]
    events = ledger.opened.deltas.get(EVENTS.name)
    bounds = None if events is None else bounds_of(events, EVENTS.at)
    if bounds is not None:
        return Period(*bounds)
    with ledger.within() as whole:
        [row] = whole.rows("select min(at_ms) as first_ms, max(at_ms) as last_ms from events")
        return Period(row.first_ms, row.last_ms)


def refuse_outside(extent: Period, at_ms: int) -> None:
    """Refuse a moment (epoch ms) for which the archived log has no state.

    Args:
        extent: log times of the first and of the last archived record, as `extent_of` returns them.
        at_ms: the moment.

    Raises:
        InvalidUsage: there are no records, or the moment is before or after them.
    """
    if extent.from_ms is None or extent.to_ms is None:
        raise InvalidUsage("the tables hold no records yet")
    if at_ms < extent.from_ms:
        raise InvalidUsage(f"{EpochMs(at_ms)} is before the archived log, which begins at {EpochMs(extent.from_ms)}")
    if at_ms > extent.to_ms:
        raise InvalidUsage(f"{EpochMs(at_ms)} is after the archived log, which ends at {EpochMs(extent.to_ms)}")


def _versions(warehouse: Place) -> Mapping[str, int]:
    """Return table -> its newest version; empty if any table cannot be read, so that its opening reports the reason."""
    try:
        return whole_versions(warehouse)
    except (InvalidUsage, UnreadableTable, DeltaError, OSError, StorageFailed):
        return {}
