"""What a shard costs for each member, heartbeat and commit: the slopes by which a cluster is sized.

`python -m bench.shard_slopes` prints a table for shards of three sizes. It counts processor time, so other work on the
machine makes the figures somewhat larger, but not many times.
"""

import statistics
import time
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from bench.population import TOPIC, Population
from bench.text_tables import digits, duration, table
from wakeroll_model.events import AnyEvent
from wakeroll_model.records import Record
from wakeroll_model.shard import Shard
from wakeroll_pipeline.recovery.packed_states import PACKED_VERSION, pack, unpack

GROUPS = (1_000, 3_000, 10_000)
MEMBERS = 10
EVENTS = 2_000
"""Events of one batch, each in another group as far as there are enough."""
ROUNDS = 3

Result = TypeVar("Result")


class Slopes(NamedTuple):
    """Figures of one shard; times are ns of a processor."""

    members: int
    size: int
    """Bytes of its state."""
    stored: int
    """Bytes of its state as Spark stores it."""
    open_ns: float
    close_ns: float
    """Of a batch with `EVENTS` events."""
    routine_ns: float
    """A heartbeat that is equal to the one before."""
    heartbeat_ns: float
    """A heartbeat that differs from the one before."""
    commit_ns: float


def slopes_of(groups: int) -> Slopes:
    """Measure a shard of so many groups, each of ten members that own a queue each and have sent heartbeats."""
    population = Population()
    population.settle_many([f"group-{number}" for number in range(groups)], MEMBERS, MEMBERS)
    before = population.shard.body()
    for who in population.everybody():
        population.append(population.beat(*who))
    body = population.shard.body()
    everybody = sorted(population.everybody(), key=lambda who: (who[1], who[0]))  # group after group
    some = [everybody[number % len(everybody)] for number in range(EVENTS)]
    beats = [population.record(population.beat(*who)) for who in some]
    commits = [population.record(_commit(population, who, number + 1)) for number, who in enumerate(some)]

    def opened(body: bytes = body) -> Shard:
        return Shard(TOPIC, 0, 1, body, raises=True)

    def stored(body: bytes = body) -> bytes:
        return pack(body, PACKED_VERSION)

    def applied(records: list[Record]) -> Callable[[Shard], Shard]:
        def apply(shard: Shard) -> Shard:
            for record in records:
                shard.apply(record)
            return shard

        return apply

    beat, commit = applied(beats), applied(commits)
    return Slopes(
        members=len(everybody),
        size=len(body),
        stored=len(stored()),
        open_ns=_processor_ns(lambda packed: opened(unpack(packed)), stored),
        close_ns=_processor_ns(lambda shard: stored(shard.body()), lambda: beat(opened())),
        routine_ns=_processor_ns(beat, opened) / EVENTS,
        heartbeat_ns=_processor_ns(beat, lambda: opened(before)) / EVENTS,
        commit_ns=_processor_ns(commit, opened) / EVENTS,
    )


def _commit(population: Population, who: tuple[str, str], offset: int) -> AnyEvent:
    event = population.commit(*who, offset=offset)
    assert event is not None, f"{who} owns a queue"
    return event


def _processor_ns(work: Callable[[Result], object], prepare: Callable[[], Result]) -> float:
    """Return the median processor time of some calls, ns; the preparation does not count."""
    times = []
    for _ in range(ROUNDS):
        prepared = prepare()
        began_ns = time.process_time_ns()
        work(prepared)
        times.append(time.process_time_ns() - began_ns)
    return statistics.median(times)


def main() -> None:
    """Print the table."""
    heads = (
        "members",
        "state",
        "bytes per member",
        "stored",
        "open",
        "close",
        "equal heartbeat",
        "other heartbeat",
        "commit",
    )
    rows = [
        (
            f"{one.members:,}",
            f"{one.size:,} bytes",
            digits(one.size / one.members),
            digits(one.stored / one.members),
            duration(one.open_ns),
            duration(one.close_ns),
            duration(one.routine_ns),
            duration(one.heartbeat_ns),
            duration(one.commit_ns),
        )
        for one in map(slopes_of, GROUPS)
    ]
    print(table(heads, rows))


if __name__ == "__main__":
    main()
