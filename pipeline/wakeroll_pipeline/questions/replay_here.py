"""The replay of a whole ledger on this machine, without Spark: one process per core, this one included."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context

from msgspec import Struct

from wakeroll_pipeline.ledger.archived_log import Period, Stretch
from wakeroll_pipeline.ledger.duck_ledger import DuckLedger, duck_ledger
from wakeroll_pipeline.questions.replay_check import Checked, check_stretch, in_order, plan_replay, unknown_of
from wakeroll_pipeline.storage.place import Place

_WORTH_IT = 20_000
"""Records from which on further processes save more time than their start costs, about half a second."""


class _Task(Struct, frozen=True, array_like=True):
    """The part of a replay that one process does."""

    warehouse: Place
    versions: Mapping[str, int]
    partitions: int
    period: Period
    stretch: Stretch


def replay_here(ledger: DuckLedger, partitions: int, period: Period) -> list[Checked]:
    """Replay all decisions of a period; each shard begins with the nearest earlier snapshot.

    Args:
        ledger: the open ledger.
        partitions: number of partitions of each control topic.
        period: period of log time.

    Returns:
        One result per shard and era, sorted.

    Raises:
        InvalidUsage: as `plan_replay`.
    """
    found = ledger.in_bounded_memory(lambda: plan_replay(ledger, partitions, period))
    return in_order([*_checks(ledger, found.stretches, partitions, period), *unknown_of(ledger, found, period)])


def _checks(ledger: DuckLedger, stretches: Iterable[Stretch], partitions: int, period: Period) -> Iterator[Checked]:
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
        return pool.submit(_check, _Task(ledger.warehouse, ledger.versions, partitions, period, stretch)).result()

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
    with duck_ledger(task.warehouse, task.versions) as ledger:
        ledger.rows("set threads = 1")
        return ledger.in_bounded_memory(lambda: check_stretch(ledger, task.stretch, task.partitions, task.period))
