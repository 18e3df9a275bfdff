"""The cost of the pull machine: wakes of some of many held pulls, and ticks without effect."""

import msgspec
from msgspec import Struct

from bench.measure import Timing, measure
from bench.population import START_MS
from bench.text_tables import both, duration, table
from wakeroll_model.config import PULL_TIMEOUT_MS
from wakeroll_model.events import Arrival, Event, Pull, Tick
from wakeroll_model.queue import Queue
from wakeroll_model.records import Record
from wakeroll_model.shard import Shard

TOPIC = "wakeroll.queues"
TICKS = 100
"""Of one round."""

_encode = msgspec.json.Encoder().encode


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


def run(holds: int, woken: list[int], ticked: list[int]) -> Holds:
    """Measure arrivals that wake so many (`woken`) of `holds` on a queue, and ticks with so many (`ticked`) holds."""
    return Holds(
        [_waking(holds, count) for count in woken],
        [_ticking(count, queues, 0) for queues in (1, 0) for count in ticked]
        + [_ticking(ticked[-1], queues, 1) for queues in (1, 0)],
    )


def section(found: Holds) -> str:
    """Return the chapter of these figures."""
    wakings = table(
        ("pulls woken, of those held", "per arrival", "per pull woken"),
        [
            (
                f"{one.woken:,} of {one.holds:,}",
                both(one.arrival),
                duration(one.arrival.median_ns / one.woken) if one.woken else "",
            )
            for one in found.wakings
        ],
    )
    ticks = table(
        ("holds", "queues", "holds that are due", "per tick"),
        [(f"{one.holds:,}", f"{one.queues:,}", f"{one.due}", both(one.tick)) for one in found.ticks],
    )
    return f"""\
An arrival at a queue evaluates each different expression once. It visits the holds that it wakes and the holds whose
filter skips it. In this measurement it is the first arrival that they skip; the next arrival does not visit them.

{wakings}

A tick without a due hold has the same cost for any number of holds, on one queue or on one queue per hold. If a hold is
due, the tick loads its queue and scans the deadlines of the shard's queues.

{ticks}
"""


class _Log:
    """A shard of queues that is alone in its topic, and the records of its partition."""

    def __init__(self) -> None:
        self.shard = Shard(TOPIC, 0, 1, raises=True)
        self._offset = -1
        self._known: set[Queue] = set()

    def record(self, event: Event, queue: Queue | None = None, at_ms: int = 0) -> Record:
        self._offset += 1
        key = None if queue is None else queue.key.encode()
        return Record(TOPIC, 0, self._offset, START_MS + at_ms, key, _encode(event))

    def hold(self, number: int, queue: Queue, tag: str = "*", timeout_ms: int = PULL_TIMEOUT_MS) -> None:
        if queue not in self._known:  # the first pull of a queue is never held
            self._known.add(queue)
            first = Pull(
                request_id="first:1",
                group_id="group",
                client_id="first",
                instance_id="first",
                queue=queue,
                from_offset=0,
            )
            self.shard.apply(self.record(first, queue))
        pull = Pull(
            request_id=f"life-{number}:1",
            group_id="group",
            client_id=f"client-{number}",
            instance_id=f"life-{number}",
            queue=queue,
            from_offset=0,
            timeout_ms=timeout_ms,
            expression=tag,
        )
        held = self.shard.apply(self.record(pull, queue))
        assert held == [], "there is nothing to read"


def _waking(holds: int, woken: int) -> Waking:
    log, queue = _Log(), Queue("orders", "", 0)
    for number in range(holds):
        log.hold(number, queue, "wanted" if number < woken else "other")
    body = log.shard.body()
    arrival = log.record(Arrival(queue=queue, next_offset=1, tags="wanted"), queue)

    def waiting() -> Shard:
        shard = Shard(TOPIC, 0, 1, body, raises=True)
        shard.queue(queue.key)  # loaded: a batch does that once
        return shard

    assert len(waiting().apply(arrival)) == woken, "the arrival wakes whom it concerns"
    return Waking(holds, woken, measure(lambda shard: shard.apply(arrival), waiting))


def _ticking(holds: int, queues: int, due: int) -> Ticking:
    """Measure ticks with holds on so many queues (0: on one each), of which so many are due at the first of them."""
    log = _Log()
    spread = queues or holds
    for number in range(holds):
        timeout_ms = 1_000 if number < due else PULL_TIMEOUT_MS
        log.hold(number, Queue("orders", "", number % spread), timeout_ms=timeout_ms)
    body = log.shard.body()
    ticks = [log.record(Tick(), at_ms=1_000) for _ in range(1 if due else TICKS)]

    def held() -> Shard:
        return Shard(TOPIC, 0, 1, body, raises=True)

    def tick(shard: Shard) -> int:
        return sum(len(shard.apply(record)) for record in ticks)

    assert tick(held()) == due, "what is due ends, and nothing else"
    return Ticking(holds, spread, due, measure(tick, held, each=len(ticks)))
