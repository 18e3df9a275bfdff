"""Resharding: the state of one shard is split into the states of several, for a larger number of partitions.

The new number is a multiple of the old one. Then all entities of a new shard come from one old shard, and continue with
its clock: the partition of a key is its hash modulo the number, so a key of partition p of n is in one of the
partitions p, p + n, p + 2n, ... of m * n. A new shard also continues the era and the numbers of the old one, so
(era, seq) orders the decisions about a group before and after it has moved.
"""

from collections.abc import Callable, Mapping

from msgspec import Struct, msgpack, structs

from wakeroll_model import config
from wakeroll_model.deadlines import Deadlines
from wakeroll_model.entity_machines import MACHINES
from wakeroll_model.group import Group
from wakeroll_model.partitioner import partition_of
from wakeroll_model.records import kind_of_topic
from wakeroll_model.shard import Shard
from wakeroll_model.shard_load import Load
from wakeroll_model.shard_state import Growth, ShardState, decode_state, encode_state


class _Head(Struct, array_like=True):
    """The beginning of a state."""

    partitions: int


_decode_head = msgpack.Decoder(_Head).decode


class CannotSplit(ValueError):
    """A state cannot be split; the message contains the reason."""


def check_number(before: int, after: int) -> None:
    """Check the new number of partitions.

    Raises:
        CannotSplit: it is not a multiple of the old number, above it.
    """
    if after <= before:
        raise CannotSplit(
            f"there are {before} partitions; the new number is {after}, and must be larger, because Kafka cannot "
            "remove partitions"
        )
    if after % before:
        raise CannotSplit(
            f"there are {before} partitions; the new number is {after}, and must be a multiple of {before}, because "
            "each new shard continues the clock of one old shard"
        )


def number_of(body: bytes) -> int:
    """Return the number of partitions with which a state was made."""
    return _decode_head(body).partitions


def split(
    topic: str, partition: int, body: bytes, partitions: int, *, offset: int, metadata_ms: int = config.METADATA_MS
) -> dict[int, bytes]:
    """Return partition -> initial state of each shard that continues a part of an old shard.

    Nothing is lost: members, owners, epochs, offsets, held pulls and deadlines stay as they are. In the new partitions
    no member expires until `metadata_ms` and the longest session of a member have passed, because clients append to the
    old partition until they receive the new number.

    Args:
        topic: the control topic.
        partition: the partition of the old shard.
        body: the state of the old shard after all records that it decides.
        partitions: the new number of partitions.
        offset: offset of the first record in the old partition that the new number decides.
        metadata_ms: longest time until a client receives metadata of new partitions (ms).

    Raises:
        CannotSplit: the number is wrong, or the shard is recovering from a loss of its state.
    """
    state = decode_state(body)
    check_number(state.partitions, partitions)
    if state.stage:
        raise CannotSplit("the shard has begun an era and not applied its first record yet")
    growth = Growth(offset, state.partitions, state.clock.tick_ms)
    parts = {partition: encode_state(_part(topic, state, partition, partitions, growth)[0])}
    for number in range(partition + state.partitions, partitions, state.partitions):
        part, session_ms = _part(topic, state, number, partitions, growth)
        until_ms = state.clock.now_ms + metadata_ms + session_ms
        clock = structs.replace(state.clock, grace_until_ms=max(state.clock.grace_until_ms, until_ms))
        # The log of a new partition begins at offset 0, and no signed record of it was read.
        begun = [structs.replace(growth, offset=0)]
        parts[number] = encode_state(structs.replace(part, offset=-1, signers={}, clock=clock, growths=begun))
    return parts


def grown(shard: Shard, offset: int, partitions: int) -> Shard:
    """Return the shard that continues an old one in the same partition from a record on; see `split`."""
    parts = split(shard.topic, shard.partition, shard.body(), partitions, offset=offset)
    return shard.continued(parts[shard.partition], partitions)


def _part(topic: str, state: ShardState, number: int, partitions: int, growth: Growth) -> tuple[ShardState, int]:
    """Return the part of a state that belongs to a partition, and the longest session of a member there (ms)."""
    machine = MACHINES[kind_of_topic(topic)]

    def is_here(name: str) -> bool:
        return partition_of(name.encode(), partitions) == number

    session_ms = 0
    entities = {name: entity for name, entity in state.entities.items() if is_here(name)}
    deadlines = {name: due_ms for name, due_ms in state.deadlines.items() if is_here(name)}
    load = Load()
    for encoded in entities.values():
        entity = machine.decode(encoded)
        load += machine.load(entity)
        if isinstance(entity, Group):
            session_ms = max([session_ms, *map(entity.session_of, entity.members.values())])
    part = structs.replace(
        state,
        partitions=partitions,
        quiet_until=0,
        entities=entities,
        deadlines=deadlines,
        next_due_ms=Deadlines(deadlines).due(-1)[1],
        readers=_of(state.readers, is_here),
        watchers=_of(state.watchers, is_here),
        load=load,
        routine={key: beats for key, beats in state.routine.items() if is_here(key.decode())},
        growths=[*state.growths, growth],
    )
    return part, session_ms


def _of(index: Mapping[str, list[str]], is_here: Callable[[str], bool]) -> dict[str, list[str]]:
    """Return the part of an index (topic -> names) with the names of one shard."""
    found = {topic: [name for name in names if is_here(name)] for topic, names in index.items()}
    return {topic: names for topic, names in found.items() if names}
