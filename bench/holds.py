"""The cost of the pull machine: wakes of some of many held pulls, and ticks without effect."""

from msgspec import Struct

from bench.figures import Columns, Timing, both, duration, measure, table_of
from bench.population import START_MS, ControlTopic
from wakeroll_model.config import PULL_TIMEOUT_MS
from wakeroll_model.events import AnyEvent, Arrival, Pull, Tick
from wakeroll_model.queue import Queue
from wakeroll_model.records import Record
from wakeroll_model.shard import Shard

TOPIC = "wakeroll.queues"
TICKS = 100
"""Of one round."""


class Waking(Struct, frozen=True):
    """An arrival that wakes some of those that are held on its queue."""

    holds: int
    woken: int
    arrival: Timing


class Ticking(Struct, frozen=True):
    """A tick, with so many holds spread over so many queues, of which so many end with it."""

    holds: int
    queues: int
    due: int
    tick: Timing


class Holds(Struct, frozen=True):
    """All of it."""

    wakings: list[Waking]
    ticks: list[Ticking]


_WAKINGS: Columns[Waking] = (
    ("pulls woken, of those held", lambda one: f"{one.woken:,} of {one.holds:,}"),
    ("per arrival", lambda one: both(one.arrival)),
    ("per pull woken", lambda one: duration(one.arrival.median_ns / one.woken) if one.woken else ""),
)
_TICKS: Columns[Ticking] = (
    ("holds", lambda one: f"{one.holds:,}"),
    ("queues", lambda one: f"{one.queues:,}"),
    ("holds that are due", lambda one: f"{one.due}"),
    ("per tick", lambda one: both(one.tick)),
)


def run(holds: int, woken: list[int], ticked: list[int]) -> Holds:
    """Measure arrivals that wake so many (`woken`) of `holds` on a queue, and ticks with so many (`ticked`) holds."""
    return Holds(
        [_waking(holds, count) for count in woken],
        [_ticking(count, queues, 0) for queues in (1, 0) for count in ticked]
        + [_ticking(ticked[-1], queues, 1) for queues in (1, 0)],
    )


def section(found: Holds) -> str:
    """Return the chapter of these figures."""
    return f"""\
An arrival at a queue evaluates each different expression once. It visits the holds that it wakes and the holds whose
filter skips it. In this measurement it is the first arrival that they skip; the next arrival does not visit them.

{table_of(_WAKINGS, found.wakings)}

A tick without a due hold has the same cost for any number of holds, on one queue or on one queue per hold. If a hold is
due, the tick loads its queue and scans the deadlines of the shard's queues.

{table_of(_TICKS, found.ticks)}
"""


class _Log(ControlTopic):
    """A shard of queues that is alone in its topic."""

    def record(self, event: AnyEvent, at_ms: int = 0) -> Record:
        [record] = self.records(event, START_MS + at_ms)
        return record

    def hold(self, number: int, queue: Queue, tag: str = "*", timeout_ms: int = PULL_TIMEOUT_MS) -> None:
        if self.shards[0].queue(queue.key) is None:  # the first pull of a queue is never held
            self.shards[0].apply(self.record(_pull("first", queue)))
        held = self.shards[0].apply(self.record(_pull(f"client-{number}", queue, tag, timeout_ms)))
        assert held == [], "there is nothing to read"


def _pull(name: str, queue: Queue, tag: str = "*", timeout_ms: int = PULL_TIMEOUT_MS) -> Pull:
    return Pull(
        request_id=f"{name}:1",
        group_id="group",
        client_id=name,
        instance_id=name,
        queue=queue,
        from_offset=0,
        timeout_ms=timeout_ms,
        expression=tag,
    )


def _waking(holds: int, woken: int) -> Waking:
    log, queue = _Log(TOPIC), Queue("orders", "", 0)
    for number in range(holds):
        log.hold(number, queue, "wanted" if number < woken else "other")
    body = log.shards[0].body()
    arrival = log.record(Arrival(queue=queue, next_offset=1, tags="wanted"))

    def waiting() -> Shard:
        shard = Shard(TOPIC, 0, 1, body, raises=True)
        shard.queue(queue.key)  # loaded: a batch does that once
        return shard

    assert len(waiting().apply(arrival)) == woken, "the arrival wakes whom it concerns"
    return Waking(holds, woken, measure(lambda shard: shard.apply(arrival), waiting))


def _ticking(holds: int, queues: int, due: int) -> Ticking:
    """Measure ticks with holds on so many queues (0: on one each), of which so many are due at the first of them."""
    log = _Log(TOPIC)
    spread = queues or holds
    for number in range(holds):
        timeout_ms = 1_000 if number < due else PULL_TIMEOUT_MS
        log.hold(number, Queue("orders", "", number % spread), timeout_ms=timeout_ms)
    body = log.shards[0].body()
    ticks = [log.record(Tick(), at_ms=1_000) for _ in range(1 if due else TICKS)]

    def held() -> Shard:
        return Shard(TOPIC, 0, 1, body, raises=True)

    def tick(shard: Shard) -> int:
        return sum(len(shard.apply(record)) for record in ticks)

    assert tick(held()) == due, "what is due ends, and nothing else"
    return Ticking(holds, spread, due, measure(tick, held, each=len(ticks)))
