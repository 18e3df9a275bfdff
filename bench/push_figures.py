"""The figures of push consumption, and their chapter."""

from pathlib import Path

from msgspec import Struct

from bench.machine import Machine
from bench.text_tables import table

PUSHED = Path(__file__).parent / "push.json"


class Way(Struct, frozen=True):
    """One way of handling the messages of a topic."""

    keys: int
    """Number of different keys; 0: messages without a key."""
    orderly: bool
    batch_size: int
    bare_per_s: float
    """Messages per second of a bare Kafka consumer with the settings that Kafka's client has by default."""
    push_per_s: float
    """Messages per second of `Consumer.run` with a handler that does nothing."""
    tuned_per_s: float | None = None
    """Messages per second of a bare Kafka consumer with the fetch settings of `Consumer`; None: not measured."""
    no_will_per_s: float | None = None
    """`push_per_s` of a consumer without a last will; None: not measured."""
    polls: bool = False
    """Whether it is `Consumer.poll` in a loop instead of `run`; then a batch is one message."""


class Pushed(Struct, frozen=True):
    """What `python -m bench.push_throughput` found."""

    machine: Machine
    messages: int
    """Per topic."""
    size: int
    """Bytes of each value."""
    queues: int
    rounds: int
    ways: list[Way]


def section(found: Pushed | None) -> str:
    """Return the chapter of these figures."""
    if found is None:
        return "Not measured yet: `python -m bench.push_throughput`, on a quiet machine, takes ten minutes.\n"
    rows = [
        (
            f"{way.keys:,}" if way.keys else "none",
            "queue" if way.orderly else "key" if way.keys else "none",
            "`poll`" if way.polls else str(way.batch_size),
            f"{way.push_per_s:,.0f}",
            "" if way.no_will_per_s is None else f"{way.push_per_s / way.no_will_per_s:.3f}",
            f"{way.bare_per_s:,.0f}",
            f"{way.push_per_s / way.bare_per_s:.2f}",
            "" if way.tuned_per_s is None else f"{way.tuned_per_s:,.0f}",
            "" if way.tuned_per_s is None else f"{way.push_per_s / way.tuned_per_s:.2f}",
        )
        for way in found.ways
    ]
    return f"""\
`Consumer.run` with a handler that does nothing and 8 workers reads {found.messages:,} messages of {found.size} bytes
from {found.queues} queues. The bare consumer is confluent-kafka's `consume(500)` on the same broker, with the client's
default settings. They include a pause of 1 s (`fetch.queue.backoff.ms`) whenever the client's local queue is full. The
tuned one has `Consumer`'s fetch settings. All run in turn while the whole system works; a figure is the median of
{found.rounds} rounds. *No will*: the ratio to the same consumer without a [last will](last-will.md). `poll`: a loop
that calls `Consumer.poll`.

{table(("keys", "order within", "batch", "messages/s", "no will", "bare/s", "ratio", "tuned/s", "ratio"), rows)}
"""
