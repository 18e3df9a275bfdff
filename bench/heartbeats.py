"""The cost of a heartbeat that changes nothing, as most heartbeats, and the cost per group that a batch touches."""

from typing import cast

import msgspec
from msgspec import Struct

from bench.figures import Columns, Timing, both, duration, measure, table_of, times
from bench.population import TOPIC, Population
from wakeroll_model import group_machine
from wakeroll_model.decisions import Cause
from wakeroll_model.entity_machines import MACHINES
from wakeroll_model.events import AnyEvent, Heartbeat
from wakeroll_model.group import Group
from wakeroll_model.known_routes import Routes
from wakeroll_model.records import Record
from wakeroll_model.shard import Shard
from wakeroll_model.shard_clock import Moment

QUEUES_EACH = 4
"""Queues that a client owns, and its heartbeat lists."""
OTHERS = 3
"""Members of the other groups of the shard."""

_decode = msgspec.json.Decoder(AnyEvent).decode


class Beat(Struct, frozen=True):
    """A heartbeat in a group of so many members, in a shard of so many groups."""

    groups: int
    members: int
    decode: Timing
    """JSON to event, which nobody can spare: the floor."""
    step: Timing
    """The machine alone."""
    apply: Timing
    """All that the shard does: decode, check of key and partition, clock, machine."""


class Touch(Struct, frozen=True):
    """What a batch pays once for each group that it touches."""

    members: int
    size: int
    """Bytes of the group's state."""
    load: Timing
    encode: Timing


class Batch(Struct, frozen=True):
    """What a batch pays once for its shard, however little it touches."""

    groups: int
    size: int
    """Bytes of the shard's state."""
    open: Timing
    close: Timing


class Heartbeats(Struct, frozen=True):
    """All of it."""

    beats: list[Beat]
    touches: list[Touch]
    batches: list[Batch]


_BEATS: Columns[Beat] = (
    ("groups in the shard, members of this one", lambda one: f"{one.groups:,}, {one.members:,}"),
    ("decode alone", lambda one: both(one.decode)),
    ("step alone", lambda one: both(one.step)),
    ("in the shard", lambda one: both(one.apply)),
    ("times decode", lambda one: times(one.apply, one.decode)),
)
_TOUCHES: Columns[Touch] = (
    ("members", lambda one: f"{one.members:,}"),
    ("bytes", lambda one: f"{one.size:,}"),
    ("load", lambda one: both(one.load)),
    ("encode", lambda one: both(one.encode)),
)
_BATCHES: Columns[Batch] = (
    ("groups in the shard", lambda one: f"{one.groups:,}"),
    ("bytes", lambda one: f"{one.size:,}"),
    ("open", lambda one: both(one.open)),
    ("close", lambda one: both(one.close)),
)


def run(groups: list[int], members: list[int], beats: int) -> Heartbeats:
    """Measure in shards of so many `groups`, in groups of so many `members`, `beats` heartbeats a round."""
    found = Heartbeats([], [], [])
    for size in members:
        for count in groups:
            population = _population(count, size)
            found.beats.append(_beat(population, count, size, beats))
            if size == members[0]:
                found.batches.append(_batch(population, count))
        found.touches.append(_touch(_measured(population), size))
    return found


def section(found: Heartbeats) -> str:
    """Return the chapter of these figures."""
    few, many = found.beats[0], found.beats[len(found.batches) - 1]
    return f"""\
A client that lists {QUEUES_EACH} queues sends a heartbeat, and nothing has changed. *Decode alone* is the floor:
msgspec decodes the event from JSON. *In the shard* is the whole work of the shard on this record: decoding, checks of
key and partition, clock, machine.
Other groups should not make a heartbeat slower. In a group of {few.members:,} it takes
{duration(few.apply.median_ns)} with {few.groups:,} in the shard, and {duration(many.apply.median_ns)} with
{many.groups:,}.

{table_of(_BEATS, found.beats)}

A batch loads each group that it touches once, and encodes it once:

{table_of(_TOUCHES, found.touches)}

Each batch opens and closes the shard's state once. A group that the batch does not touch is not decoded. Here one group
is touched, and each of the other groups has {OTHERS} members:

{table_of(_BATCHES, found.batches)}
"""


def _population(groups: int, members: int) -> Population:
    """Make a shard whose group `measured` has so many members."""
    population = Population()
    population.settle_many([f"group-{number}" for number in range(groups - 1)], OTHERS, OTHERS * QUEUES_EACH)
    population.settle(["measured"], members, members * QUEUES_EACH)
    return population


def _measured(population: Population) -> Group:
    group = population.shard.group("measured")
    assert group is not None, "it was settled"
    return group


def _beat(population: Population, groups: int, members: int, beats: int) -> Beat:
    shard, group = population.shard, _measured(population)
    clients = population.clients("measured")
    wanted = [population.beat("measured", clients[number % len(clients)]) for number in range(beats)]
    records = [population.record(event) for event in wanted]
    assert not any(shard.apply(record) for record in records), "a heartbeat of a settled group changes nothing"
    moment, cause = Moment(shard.now_ms, population.now_ms, True), Cause(TOPIC, 0, 0)
    routes = Routes({})

    def step_all(events: list[Heartbeat]) -> None:
        for event in events:
            group_machine.step(group, event, moment, cause, routes)

    def apply_all(records: list[Record]) -> None:
        for record in records:
            shard.apply(record)

    def decode_all(values: list[bytes]) -> None:
        for value in values:
            _decode(value)

    def next_batch() -> list[Record]:
        shard.body()
        return records

    values = [cast(bytes, record.value) for record in records]
    return Beat(
        groups,
        members,
        decode=measure(decode_all, lambda: values, each=beats),
        step=measure(step_all, lambda: wanted, each=beats),
        apply=measure(apply_all, next_batch, each=beats),
    )


def _touch(group: Group, members: int) -> Touch:
    machine = MACHINES["groups"]
    body = machine.encode(group)
    load, encode = measure(machine.decode, lambda: body), measure(machine.encode, lambda: group)
    return Touch(members, len(body), load, encode)


def _batch(population: Population, groups: int) -> Batch:
    body = population.shard.body()
    record = population.record(population.beat("measured", population.clients("measured")[0]))

    def touched() -> Shard:
        shard = Shard(TOPIC, 0, 1, body, raises=True)
        shard.apply(record)
        return shard

    opened = measure(lambda state: Shard(TOPIC, 0, 1, state), lambda: body)
    return Batch(groups, len(body), opened, measure(Shard.body, touched))
