"""What a shard costs for each member, heartbeat, commit and signature: the slopes by which a cluster is sized.

It counts processor time, so other work on the machine makes the figures somewhat larger, but not many times.
"""

import statistics
import time
from argparse import Namespace
from collections.abc import Callable
from typing import NamedTuple, TypeVar

import msgspec

from bench.frame import Bench, numbers, option
from bench.population import TOPIC, Population
from bench.text_tables import Columns, digits, duration, table_of
from wakeroll.keys import ALGORITHMS, new_client_key, new_client_signer, new_key, new_signer
from wakeroll_model.events import AnyEvent, Commit, CommittedOffset, Tick
from wakeroll_model.feature_levels import NEWEST
from wakeroll_model.queue import Queue
from wakeroll_model.records import Record
from wakeroll_model.shard import Shard
from wakeroll_model.signing import Keys
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


class Signed(NamedTuple):
    """Figures of one way to sign; times are ns of a processor for a record."""

    how: str
    tick_bytes: int
    tick_sign_ns: float
    tick_apply_ns: float
    """All that a shard does with a tick."""
    commit_sign_ns: float
    commit_apply_ns: float
    """All that a shard does with a commit of a group that does not exist."""


def signed_by(how: str) -> Signed:
    """Measure ticks and commits that are signed with one kind of key, or (`none`) with none."""
    observer, client = None, None
    for algorithm in ALGORITHMS:
        if algorithm == how:
            observer, client = new_key("observer", algorithm=algorithm), new_client_key("", algorithm=algorithm)
    keys = None if observer is None or client is None else Keys.of([observer], [client])
    tick, group_id = msgspec.json.encode(Tick()), "billing"
    committed = CommittedOffset(queue=Queue("orders", "", 0), offset=7)
    commit = msgspec.json.encode(
        Commit(group_id=group_id, client_id="c1", instance_id="i1", epoch=1, offsets=[committed])
    )

    def ticks() -> list[bytes]:
        signer = None if observer is None else new_signer(observer)
        return [tick if signer is None else signer.sign(TOPIC, 0, None, tick, offset) for offset in range(EVENTS)]

    def commits() -> list[bytes]:
        signer = None if client is None else new_client_signer(client)
        return [commit if signer is None else signer.sign(TOPIC, group_id.encode(), commit) for _ in range(EVENTS)]

    def applied(values: list[bytes], key: bytes | None) -> float:
        records = [Record(TOPIC, 0, offset, offset, key, value) for offset, value in enumerate(values)]

        def apply(shard: Shard) -> None:
            for record in records:
                shard.apply(record)

        return _processor_ns(apply, lambda: Shard(TOPIC, 0, 1, signatures=keys, level=NEWEST)) / EVENTS

    return Signed(
        how=how,
        tick_bytes=len(ticks()[-1]),
        tick_sign_ns=_processor_ns(lambda _: ticks(), lambda: None) / EVENTS,
        tick_apply_ns=applied(ticks(), None),
        commit_sign_ns=_processor_ns(lambda _: commits(), lambda: None) / EVENTS,
        commit_apply_ns=applied(commits(), group_id.encode()),
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


_SLOPES: Columns[Slopes] = (
    ("members", lambda one: f"{one.members:,}"),
    ("state", lambda one: f"{one.size:,} bytes"),
    ("bytes per member", lambda one: digits(one.size / one.members)),
    ("stored", lambda one: digits(one.stored / one.members)),
    ("open", lambda one: duration(one.open_ns)),
    ("close", lambda one: duration(one.close_ns)),
    ("equal heartbeat", lambda one: duration(one.routine_ns)),
    ("other heartbeat", lambda one: duration(one.heartbeat_ns)),
    ("commit", lambda one: duration(one.commit_ns)),
)
_SIGNED: Columns[Signed] = (
    ("signature", lambda one: one.how),
    ("bytes of a tick", lambda one: str(one.tick_bytes)),
    ("sign a tick", lambda one: duration(one.tick_sign_ns)),
    ("apply it", lambda one: duration(one.tick_apply_ns)),
    ("sign a commit", lambda one: duration(one.commit_sign_ns)),
    ("apply it", lambda one: duration(one.commit_apply_ns)),
)


def measure(given: Namespace) -> str:
    """Return the tables."""
    slopes = table_of(_SLOPES, [slopes_of(groups) for groups in given.groups])
    return f"{slopes}\n\n{table_of(_SIGNED, [signed_by(how) for how in ('none', *reversed(ALGORITHMS))])}"


BENCH = Bench(
    "shard_slopes",
    "What a shard costs per member, event and signature (docs/cluster.md, docs/security.md).",
    "a minute",
    measure,
    options=(option("--groups", type=numbers, default=GROUPS, help="of the shards, by comma"),),
    has_folder=False,
)
