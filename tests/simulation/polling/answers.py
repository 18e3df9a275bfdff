"""The one answer that each pull must get, by the log alone: which is the first event after it that ends it?

It follows one pull at a time through the log, where the machine follows the log with all its pulls.
"""

from bisect import bisect_right, insort
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from model.clock import ShardClock
from model.config import SKIP_MS
from model.events import AnyEvent, Arrival, Cancel, Pull, Tick
from model.records import Record
from polling.bounds import HOLDS_PER_QUEUE, HOLDS_PER_SHARD
from polling.messages import may_want

STILL_HELD = 2**62
"""Where the answer of a pull is that has none yet: after everything."""


@dataclass(frozen=True, slots=True)
class Happened:
    """One event of a partition's log."""

    offset: int
    now_ms: int
    """The shard's clock."""
    event: AnyEvent


@dataclass(frozen=True, slots=True)
class Answer:
    """How a pull ends."""

    offset: int
    """The log's, of the event that ends it; `STILL_HELD` if none has."""
    reason: str = ""
    next_offset: int = 0
    held_ms: int = 0


def read_log(records: Sequence[Record], events: Sequence[AnyEvent | None]) -> list[Happened]:
    """Return what happened in a partition; a record that is no event moves the clock only."""
    clock, log = ShardClock(), []
    for record, event in zip(records, events, strict=True):
        moment = clock.read(record.timestamp_ms, tick=isinstance(event, Tick))
        if event is not None:
            log.append(Happened(record.offset, moment.now_ms, event))
    return log


def answers(log: Sequence[Happened]) -> dict[int, Answer]:
    """Return the answer of each pull of a partition that counts, by the log offset of the pull.

    One whose number is not above the last of its instance does not count: it is a repetition, or was overtaken.
    """
    keys = sorted({happened.event.queue.key for happened in log if not isinstance(happened.event, Tick)})
    lanes = {key: Lane(log, key) for key in keys}
    found: dict[int, Answer] = {}
    ends: dict[str, list[int]] = defaultdict(list)  # where pulls end: those of a queue, and under "" all; sorted
    for pulled in log:
        if isinstance(pulled.event, Pull):
            key = pulled.event.queue.key
            if pulled.offset in lanes[key].counting:
                here, everywhere = (len(ends[at]) - bisect_right(ends[at], pulled.offset) for at in (key, ""))
                is_full = here >= HOLDS_PER_QUEUE or everywhere >= HOLDS_PER_SHARD
                answer = found[pulled.offset] = lanes[key].answer(pulled, is_full)
                insort(ends[key], answer.offset)
                insort(ends[""], answer.offset)
    return found


class Lane:
    """The log as one queue sees it: what is about it, and every tick."""

    def __init__(self, log: Sequence[Happened], key: str) -> None:
        self._events = [one for one in log if isinstance(one.event, Tick) or one.event.queue.key == key]
        self._index = {happened.offset: number for number, happened in enumerate(self._events)}
        self._told = list(accumulate(self._events, _told, initial=0))  # where the queue ends, before each of the events
        self.counting = set(_counting(self._events))
        """Log offsets of the pulls that count."""

    def answer(self, pulled: Happened, is_full: bool) -> Answer:
        """Follow a pull through the log until something ends it; `is_full`: nobody more can be held when it comes."""
        pull, start = pulled.event, self._index[pulled.offset]
        assert isinstance(pull, Pull)
        told = self._told[start]
        if told > pull.from_offset:
            return Answer(pulled.offset, "arrival", told)
        if is_full:
            return Answer(pulled.offset, "overflow", pull.from_offset)
        skipped_ms = STILL_HELD
        for number in range(start + 1, len(self._events)):
            happened = self._events[number]
            reason = ""
            match happened.event:
                case Arrival(truncated=True):
                    reason = "truncated"
                case Arrival(next_offset=next_offset) as arrival if next_offset > pull.from_offset:
                    if may_want(pull, arrival):
                        reason = "arrival"
                    else:
                        skipped_ms = min(skipped_ms, happened.now_ms)
                case Tick() if happened.now_ms >= pulled.now_ms + pull.timeout_ms:
                    reason = "timeout"
                case Tick() if happened.now_ms >= skipped_ms + SKIP_MS:
                    reason = "skipped"
                case Cancel(request_id=request_id) if request_id == pull.request_id:
                    reason = "cancelled"
                case Pull() as newer if happened.offset in self.counting and _client(newer) == _client(pull):
                    reason = "superseded"
            if reason:
                told = self._told[number + 1]
                next_offset = told if reason == "truncated" else max(told, pull.from_offset)
                return Answer(happened.offset, reason, next_offset, happened.now_ms - pulled.now_ms)
        return Answer(STILL_HELD)


def _told(end: int, happened: Happened) -> int:
    """Return where a queue ends, after one more event: an arrival only counts upwards, but for a truncation."""
    match happened.event:
        case Arrival(truncated=True, next_offset=next_offset):
            return next_offset
        case Arrival(next_offset=next_offset):
            return max(end, next_offset)
    return end


def _counting(events: Sequence[Happened]) -> list[int]:
    """Return the log offsets of the pulls whose numbers are above the last one of their instance."""
    last: dict[tuple[str, str, str], int] = {}
    offsets = []
    for happened in events:
        if isinstance(pull := happened.event, Pull):
            life = *_client(pull), pull.instance_id
            number = int(pull.request_id.rpartition(":")[2])
            if number > last.get(life, -1):
                last[life] = number
                offsets.append(happened.offset)
    return offsets


def _client(pull: Pull) -> tuple[str, str]:
    return pull.group_id, pull.client_id
