"""The schedule of snapshots: they are due after a time, or earlier after many records."""

from collections.abc import Callable

from wakeroll_pipeline.settings import Settings

FIRST_MS = 60_000
"""Longest time from the start to the first snapshots (ms), so that a new deployment can soon be restored."""
SHARE = 4
"""Snapshots that are due by the number of records use at most this fraction (1/SHARE) of the time. Their time depends
on Spark: they take 3 s on a busy machine, and 0.3 s on an idle one."""
LOOK_MS = 2_000
"""Interval in which the progress of a slow coordinator is read while new states are awaited (ms)."""
BYTES_PER_RECORD = 200
"""Largest size of the states (bytes) for each record between two snapshots. In its table, a snapshot has about a
twelfth of the state's size: at most 17 bytes per record, which itself has 6 to 60 bytes."""


class SnapshotSchedule:
    """Decides when the next snapshots are due. One thread counts records, and another one queries the schedule.

    A reader of the state at a moment applies the records since the snapshots before it. So their number must be
    bounded, at any rate of records.
    """

    def __init__(self, settings: Settings, started_ms: int) -> None:
        """Begin without snapshots, in a process that has run since `started_ms` (epoch ms)."""
        self._interval_ms = settings.snapshot_interval_ms
        self._least_records = self._records = settings.snapshot_records
        self._due_ms = started_ms + min(self._interval_ms, FIRST_MS)
        self._earliest_ms = 0
        """Earliest time of the next snapshots, however many records there are (epoch ms)."""
        self._recorded = 0
        """Number of records since the start."""
        self._covered = 0
        """Records between the start and the last snapshots."""
        self._reached = 0
        """Records that the states of the last snapshots include."""

    def count(self, records: int) -> None:
        """Note that this number of records of the control topics was written to the tables."""
        self._recorded += records

    def is_due(self, now_ms: int, reached: Callable[[], int]) -> bool:
        """Return whether the next snapshots are due.

        Args:
            now_ms: the time (epoch ms).
            reached: returns the number of records that the states in the checkpoint include. It is called only if there
                are enough records in the tables, because it reads files.
        """
        if now_ms >= self._due_ms:
            return True
        if self._recorded - self._covered < self._records or now_ms < self._earliest_ms:
            return False
        # A coordinator that is slower than `record` would store the same states again.
        has_moved = reached() - self._reached >= self._records // 2
        self._earliest_ms = now_ms + LOOK_MS
        return has_moved

    def begin(self, now_ms: int, reached: int) -> None:
        """Note that snapshots are taken now: the next ones are due an interval later, even if these fail.

        Args:
            now_ms: the time (epoch ms).
            reached: number of records that the states include.
        """
        self._due_ms = now_ms + self._interval_ms
        self._covered, self._reached = self._recorded, reached

    def end(self, began_ms: int, ended_ms: int, state_bytes: int) -> None:
        """Take the duration and the size of snapshots into account.

        Args:
            began_ms: time of their `begin` (epoch ms).
            ended_ms: time at which they were in the table (epoch ms).
            state_bytes: size of the states of all shards.
        """
        self._earliest_ms = ended_ms + (SHARE - 1) * max(ended_ms - began_ms, 0)
        self._records = max(self._least_records, state_bytes // BYTES_PER_RECORD)
