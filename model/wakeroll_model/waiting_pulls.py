"""The held pulls of a queue, indexed by client, deadline, filter and offset.

An arrival visits each filter once, and only the holds that it wakes or skips for the first time. A tick visits the
holds that are due. A cancel and a pull visit one.
"""

from bisect import bisect_left, bisect_right, insort
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from msgspec import Struct

from wakeroll_model import config
from wakeroll_model.config import NEVER_MS
from wakeroll_model.events import Arrival
from wakeroll_model.filters import ParsedSubscription, matches, parse
from wakeroll_model.filters.tags import ALL

_SPARE = 64
"""Number of outdated deadlines below which the heap is not rebuilt."""


class PullFilter(NamedTuple):
    """The filter of a pull."""

    expression: str
    expression_type: str

    @property
    def cost(self) -> int:
        """Cost of the filter at an arrival, in characters."""
        return 0 if self.expression == ALL else len(self.expression) + config.FILTER_CHARACTERS


class Hold(Struct, array_like=True):
    """A held pull, whose client found no message and waits."""

    request_id: str
    group_id: str
    client_id: str
    from_offset: int
    since_ms: int
    """The shard's clock when the pull arrived."""
    until_ms: int
    """The shard's clock when the pull is answered in any case."""
    life: bytes
    """Digest of the names of its group, client and instance."""
    skipped_ms: int = -1
    """The shard's clock at the first arrival that its filter did not match; -1 if none."""
    filter_number: int = -1
    """Number of its filter."""

    @property
    def number(self) -> int:
        """Number of its request, which increases within an instance."""
        return int(self.request_id.rpartition(":")[2])

    @property
    def due_ms(self) -> int:
        """When the pull is answered in any case, by the shard's clock: at its timeout, or to skip messages."""
        return self.until_ms if self.skipped_ms < 0 else min(self.until_ms, self.skipped_ms + config.SKIP_MS)


class FilterHolds:
    """The holds with the same filter, sorted by offset and number."""

    def __init__(self, pull_filter: PullFilter, wanted: ParsedSubscription | None = None) -> None:
        """Begin without holds; `wanted` is the parsed filter, None to parse it when it is needed."""
        self.pull_filter = pull_filter
        self.fresh: list[tuple[int, int]] = []
        """(from_offset, number) of the holds that have skipped no arrival."""
        self.skipped: list[tuple[int, int]] = []
        self._wanted = wanted

    def __len__(self) -> int:
        return len(self.fresh) + len(self.skipped)

    def has_below(self, offset: int) -> bool:
        """Return whether a pull waits from an offset below this one."""
        return any(side and side[0][0] < offset for side in (self.fresh, self.skipped))

    def above(self, offset: int) -> list[int]:
        """Return the numbers of the holds that wait from an offset above this one."""
        return [
            number
            for side in (self.fresh, self.skipped)
            for _, number in side[bisect_right(side, (offset, NEVER_MS)) :]
        ]

    def take_below(self, offset: int) -> list[int]:
        """Remove the holds that wait from an offset below this one; return their numbers."""
        taken = []
        for side in (self.fresh, self.skipped):
            count = bisect_left(side, (offset,))
            taken += [number for _, number in side[:count]]
            del side[:count]
        return taken

    def skip_below(self, offset: int) -> list[int]:
        """Mark the holds below this offset: they skipped an arrival; return the numbers of those not marked before."""
        count = bisect_left(self.fresh, (offset,))
        skipping = self.fresh[:count]
        del self.fresh[:count]
        for each in skipping:
            insort(self.skipped, each)
        return [number for _, number in skipping]

    def remove(self, number: int, hold: Hold) -> None:
        """Remove one hold."""
        side = self.fresh if hold.skipped_ms < 0 else self.skipped
        del side[bisect_left(side, (hold.from_offset, number))]

    def wants(self, arrival: Arrival) -> bool:
        """Return whether the filter matches the arrival; without tags and properties, it matches every filter."""
        if arrival.tags_code is None and arrival.tags is None and arrival.properties is None:
            return True
        if self._wanted is None:
            self._wanted = parse(self.pull_filter.expression, self.pull_filter.expression_type)
        return matches(self._wanted, arrival.tags_code, arrival.tags, arrival.properties)


class WaitingPulls:
    """The holds of a queue, and the indexes over them; no other code may change the holds."""

    def __init__(self, holds: dict[int, Hold], pull_filters: dict[int, PullFilter]) -> None:
        """Index these holds; both dicts are changed in place from then on."""
        self._holds = holds
        self._pull_filters = pull_filters
        self._numbers = {pull_filter: number for number, pull_filter in pull_filters.items()}
        self._by_filter = {number: FilterHolds(pull_filter) for number, pull_filter in pull_filters.items()}
        self._clients: dict[tuple[str, str], int] = {}
        self._due: list[tuple[int, int]] = []
        """Heap of (due_ms, number); entries of holds that were removed, or that are due earlier by now, are ignored."""
        self.filters = sum(pull_filter.cost for pull_filter in pull_filters.values())
        """Cost of all filters together, in characters."""
        for number, hold in holds.items():
            same_filter = self._by_filter[hold.filter_number]
            (same_filter.fresh if hold.skipped_ms < 0 else same_filter.skipped).append((hold.from_offset, number))
            self._clients[hold.group_id, hold.client_id] = number
        for same_filter in self._by_filter.values():
            same_filter.fresh.sort()
            same_filter.skipped.sort()
        self._rebuild_due()

    @property
    def by_filter(self) -> list[FilterHolds]:
        """The holds of each filter."""
        return list(self._by_filter.values())

    def numbers(self) -> list[int]:
        """Return the numbers of all holds, filter by filter."""
        return [
            number
            for same_filter in self._by_filter.values()
            for _, number in (*same_filter.fresh, *same_filter.skipped)
        ]

    def of_client(self, group_id: str, client_id: str) -> int | None:
        """Return the number of a client's held pull; None if it has none."""
        return self._clients.get((group_id, client_id))

    def costs(self, pull_filter: PullFilter) -> int:
        """Return the increase of `filters` if a pull with this filter is held."""
        return 0 if pull_filter in self._numbers else pull_filter.cost

    def add(self, number: int, hold: Hold, pull_filter: PullFilter, wanted: ParsedSubscription) -> None:
        """Hold a pull, whose client must not have one; `wanted` is its parsed filter."""
        if pull_filter not in self._numbers:
            self._pull_filters[number] = pull_filter
            self._numbers[pull_filter] = number
            self._by_filter[number] = FilterHolds(pull_filter, wanted)
            self.filters += pull_filter.cost
        hold.filter_number = self._numbers[pull_filter]
        self._holds[number] = hold
        self._clients[hold.group_id, hold.client_id] = number
        insort(self._by_filter[hold.filter_number].fresh, (hold.from_offset, number))
        self._note_due(number, hold)

    def remove(self, number: int) -> Hold:
        """Remove a hold and return it."""
        hold = self._holds[number]
        self._by_filter[hold.filter_number].remove(number, hold)
        return self.drop(number)

    def drop(self, number: int) -> Hold:
        """Remove a hold that `FilterHolds` has removed already."""
        hold = self._holds.pop(number)
        del self._clients[hold.group_id, hold.client_id]
        same_filter = self._by_filter.get(hold.filter_number)
        if same_filter is not None and not same_filter:
            pull_filter = self._pull_filters.pop(hold.filter_number)
            del self._by_filter[hold.filter_number], self._numbers[pull_filter]
            self.filters -= pull_filter.cost
        return hold

    def skip(self, same_filter: FilterHolds, offset: int, now_ms: int) -> None:
        """Mark the holds of a filter as having skipped an arrival that it does not match."""
        for number in same_filter.skip_below(offset):
            hold = self._holds[number]
            hold.skipped_ms = now_ms
            self._note_due(number, hold)

    def due(self, now_ms: int) -> list[int]:
        """Return the numbers of the holds whose deadline has come, sorted; the caller must remove them."""
        due = set()
        while self._due and self._due[0][0] <= now_ms:
            number = heappop(self._due)[1]
            if number in self._holds:
                due.add(number)
        return sorted(due)

    def next_due_ms(self) -> int:
        """Return the earliest deadline; `NEVER_MS` if there is none."""
        self._tidy()
        while self._due and self._due[0][1] not in self._holds:
            heappop(self._due)
        return self._due[0][0] if self._due else NEVER_MS

    def _note_due(self, number: int, hold: Hold) -> None:
        heappush(self._due, (hold.due_ms, number))

    def _tidy(self) -> None:
        """Rebuild the heap if outdated deadlines outnumber the others; the cost does not exceed that of adding them."""
        if len(self._due) > 2 * len(self._holds) + _SPARE:
            self._rebuild_due()

    def _rebuild_due(self) -> None:
        self._due = [(hold.due_ms, number) for number, hold in self._holds.items()]
        heapify(self._due)
