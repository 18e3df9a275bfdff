"""The replay of a whole ledger on this machine, without Spark: one process per core, this one included."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import suppress
from multiprocessing import get_context

from msgspec import Struct

from wakeroll.errors import InvalidUsage
from wakeroll_pipeline.ledger.archived_log import LATEST_MS
from wakeroll_pipeline.ledger.duck_ledger import DuckLedger, duck_ledger
from wakeroll_pipeline.ledger.period import Period
from wakeroll_pipeline.ledger.replay_stretches import Replayable, Stretch
from wakeroll_pipeline.questions.replay_check import Checked, check_stretch, in_order, plan_replay, unknown_of
from wakeroll_pipeline.storage.place import Place

_WORTH_IT = 20_000
"""Number of records from which on further processes save more time than their start costs, about half a second."""


_Files = tuple[int, int | None]
"""Period of the files that are opened (epoch ms), as for `DuckLedger.within`."""


class _Task(Struct, frozen=True, array_like=True):
    """The part of a replay that one process computes."""

    warehouse: Place
    versions: Mapping[str, int]
    partitions: int
    period: Period
    stretch: Stretch
    files: _Files | None
    """Period of the files to open; Period of the files to open; None: all."""


def replay_here(ledger: DuckLedger, partitions: int, period: Period, group_id: str | None = None) -> list[Checked]:
    """Replay all decisions of a period, or those about a group; each shard begins with the nearest earlier snapshot.

    Only the files of the period and of the time since these snapshots are opened. If their decisions differ from those
    of the replay, or rows are missing, all files are opened, and the result is based on all of them.

    Args:
        ledger: the open ledger.
        partitions: number of partitions of each control topic.
        period: period of log time.
        group_id: the group, whose shards are then replayed in this process; Period of the files to open; Period of the
            files to open; None: all.

    Returns:
        One result per shard and era, sorted.

    Raises:
        InvalidUsage: as `plan_replay`.
    """
    for files in _files_of(ledger, period):
        # The refusal may not hold for all files: of a group that was not rebalanced in the period, for example.
        with suppress(InvalidUsage), ledger.within(*files) as part:
            found = _plan(part, partitions, period, group_id)
            if not found.unknown:
                # The first records of these files are not where the archived log begins.
                checks = _checked(part, found._replace(begins={}), partitions, period, group_id, files)
                if all(_is_equal(one, period) for one in checks):
                    return checks
                break
    found = _plan(ledger, partitions, period, group_id)
    return _checked(ledger, found, partitions, period, group_id, None)


def _files_of(ledger: DuckLedger, period: Period) -> Iterator[_Files]:
    """Yield longer and longer periods of files, which may contain a replay with its starting snapshots.

    The times of snapshots do not show the period, because the clock of a shard lags behind the log by all dark time.
    """
    if period == Period():
        return
    # Decisions may be recorded a while later than their log time.
    to_ms = None if period.to_ms is None else period.to_ms + LATEST_MS
    if period.from_ms is not None:
        yield from ((from_ms, to_ms) for from_ms in ledger.periods(period.from_ms))
    if to_ms is not None:
        yield 0, to_ms


def _is_equal(one: Checked, period: Period) -> bool:
    """Return whether a result from a part of the files is certainly that of all files: it has no differences.

    If the files end before the newest ones, a decision that is not recorded may be in a later file.
    """
    is_missing = bool(one.not_recorded) and period.to_ms is not None
    return not (one.differences or one.unequal or one.unknown or one.lost or one.edited or is_missing)


def _plan(ledger: DuckLedger, partitions: int, period: Period, group_id: str | None) -> Replayable:
    return ledger.in_bounded_memory(lambda: plan_replay(ledger, partitions, period, group_id))


def _checked(
    ledger: DuckLedger, found: Replayable, partitions: int, period: Period, group_id: str | None, files: _Files | None
) -> list[Checked]:
    if group_id is None:
        checks = list(_checks(ledger, found.stretches, partitions, period, files))
    else:
        checks = [check_stretch(ledger, one, partitions, period, group_id) for one in found.stretches]
    return in_order([*checks, *unknown_of(ledger, found, period, group_id)])


def _checks(
    ledger: DuckLedger,
    stretches: Iterable[Stretch],
    partitions: int,
    period: Period,
    files: _Files | None,
) -> Iterator[Checked]:
    longest_first = sorted(stretches, key=lambda one: one.after - one.last)
    processes = min(len(longest_first), os.cpu_count() or 1)
    if processes < 2 or sum(one.last - one.after for one in longest_first) < _WORTH_IT:
        for stretch in longest_first:
            yield check_stretch(ledger, stretch, partitions, period)
        return
    left = deque(longest_first)

    def replayed_by(replay: Callable[[Stretch], Checked]) -> list[Checked]:
        found = []
        while left:
            try:
                stretch = left.popleft()
            except IndexError:  # another thread was faster
                break
            found.append(replay(stretch))
        return found

    def there(stretch: Stretch) -> Checked:
        task = _Task(ledger.warehouse, ledger.versions, partitions, period, stretch, files)
        return pool.submit(_check, task).result()

    def here(stretch: Stretch) -> Checked:
        return ledger.in_bounded_memory(lambda: check_stretch(ledger, stretch, partitions, period))

    ledger.rows("set threads = 1")
    others = processes - 1
    # A forked child would inherit DuckDB's locks without its threads.
    with ProcessPoolExecutor(others, mp_context=get_context("spawn")) as pool, ThreadPoolExecutor(others) as threads:
        waiting = [threads.submit(replayed_by, there) for _ in range(others)]
        yield from replayed_by(here)
        for one in waiting:
            yield from one.result()


def _check(task: _Task) -> Checked:
    with duck_ledger(task.warehouse, task.versions) as whole, whole.within(*task.files or (None,)) as ledger:
        ledger.rows("set threads = 1")
        return ledger.in_bounded_memory(lambda: check_stretch(ledger, task.stretch, task.partitions, task.period))
