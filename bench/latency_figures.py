"""Latencies of the whole path, from the append of an event to the append of its answer, compared with the floor."""

import math
from collections.abc import Iterable, Sequence
from pathlib import Path

from msgspec import Struct

from bench.machine import Machine
from bench.text_tables import digits, table

WAKES = Path(__file__).parent / "wakes.json"


class Latency(Struct, frozen=True):
    """How long so many answers took; ms."""

    count: int
    p50_ms: float
    p99_ms: float


class Way(Struct, frozen=True):
    """What one of the two ways from event to answer takes."""

    heartbeat: Latency
    """From a heartbeat to its assignment."""
    wake: Latency
    """From an arrival to the wake of a pull that it found waiting."""
    at_once: Latency
    """From a pull to its wake, when there was something to read already."""


class Wakes(Struct, frozen=True):
    """What `python -m bench.path_latency` found."""

    machine: Machine
    seconds: float
    """That count, of each figure."""
    warmup_s: float
    """Before each figure, that do not count."""
    clients: int
    queues: int
    per_second: int
    """Messages."""
    reached: int
    """Of the clients that waited, those that were woken."""
    handlers: int
    """Real consumers among those who wait, each in `fetch`."""
    floor: Way
    ours: Way
    fetched: Latency
    """From producing a message to the handler of a consumer that waited for it."""
    polled: Latency
    """The same for a consumer that polls Kafka all the time."""
    queryable: Latency
    """From a decision's append to Kafka to its commit in Delta."""


def latency_of(times_ms: Iterable[int]) -> Latency:
    """Return the percentiles of some latencies, by nearest rank; of none, NaN would be no JSON, so 0.

    >>> latency_of([30, 10, 20])
    Latency(count=3, p50_ms=20, p99_ms=30)
    """
    ordered = sorted(times_ms)
    return Latency(len(ordered), _rank(ordered, 0.5), _rank(ordered, 0.99))


def section(found: Wakes | None) -> str:
    """Return the chapter of these figures."""
    if found is None:
        return "Not measured yet: `python -m bench.path_latency`, on a quiet machine, takes ten minutes.\n"
    ways = (
        ("a heartbeat's append to its assignment's", "heartbeat"),
        (f"an arrival's append to its wake's ({found.clients} waiting)", "wake"),
        ("a pull's append to its wake's (a message was available)", "at_once"),
    )
    rows = []
    for what, name in ways:
        floor, ours = getattr(found.floor, name), getattr(found.ours, name)
        rows.append((what, f"{ours.count:,}", *_both(ours), *_both(floor), times_floor(ours, floor)))
    for what, direct in (
        ("a message's produce to its handler's call, in `fetch`", found.fetched),
        ("the same with a Kafka consumer that polls continuously", found.polled),
        ("a decision's append to its commit in Delta", found.queryable),
    ):
        rows.append((what, f"{direct.count:,}", *_both(direct), "", "", ""))
    heads = ("from ... to ...", "answers", "p50", "p99", "floor p50", "floor p99", "p50 times floor")
    return f"""\
The broker, the observer and the jobs of `wakeroll run` (including `record`) run on one machine. Times are the
broker's append times. The *floor* is Spark alone, on the same broker in the same run, with the same session, source,
sink and `record`: the records of the control topics pass through it, without state and without Python. The heartbeats
are those of new instances of one client, five per second. Then {found.clients} consumers wait on {found.queues} queues
for {found.per_second} messages per second. Each consumer that is woken pulls again at once.
Woken: {found.reached} of the {found.clients}. Then the same with {found.handlers} real consumers, which wait in
`fetch`, one on each of {found.handlers} of these queues. {found.seconds:g} s of each measurement count, after
{found.warmup_s:g} s of warm-up.

{table(heads, rows)}

Measured on {found.machine.measured} with {found.machine.sentence}.
"""


def times_floor(ours: Latency, floor: Latency) -> str:
    """Return how many times the floor's p50 ours is; empty when one has no answers."""
    return digits(ours.p50_ms / floor.p50_ms) if ours.count and floor.p50_ms else ""


def _rank(ordered: Sequence[int], part: float) -> float:
    return ordered[max(math.ceil(part * len(ordered)) - 1, 0)] if ordered else 0


def _both(its: Latency) -> tuple[str, str]:
    """Return p50 and p99 as text, empty if there were no answers."""
    return (f"{its.p50_ms:,.0f} ms", f"{its.p99_ms:,.0f} ms") if its.count else ("", "")
