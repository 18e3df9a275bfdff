"""Slices: the hash that cuts a partition, what is processed of them, and how they are kept together."""

from collections import Counter
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wakeroll_model import invariants
from wakeroll_model.decisions import Done, Handover
from wakeroll_model.partitioner import partition_of
from wakeroll_model.queue import Queue
from wakeroll_model.slices import MOST, container, cut, key_of_offset, slice_of
from wakeroll_model.slicing import progress
from wakeroll_model.strategies import allocate

NUMBERS = (1, 2, 4, 8, 16, 32, 64)
KEYS = {
    "sequential": [b"customer-%d" % number for number in range(40_000)],
    "decimal": [b"%d" % number for number in range(40_000)],
    "uuid": [str(UUID(int=number * 0x9E3779B97F4A7C15F39CC0605CEDC835 % 2**128)).encode() for number in range(40_000)],
    "offsets": [key_of_offset(number) for number in range(40_000)],
}


@pytest.mark.parametrize("kind", sorted(KEYS))
@pytest.mark.parametrize("partitions", [2, 3, 8, 12, 64])
def test_keys_of_one_partition_spread_over_its_slices(kind, partitions):
    """Kafka's producers choose the partition by murmur2: a related hash would leave slices of it empty."""
    of_partition: dict[int, list[bytes]] = {}
    for key in KEYS[kind]:
        of_partition.setdefault(partition_of(key, partitions), []).append(key)

    for slices in NUMBERS[1:]:
        surprise = 0.0
        for keys in of_partition.values():
            counts, mean = Counter(slice_of(key, slices) for key in keys), len(keys) / slices
            surprise += sum((counts[number] - mean) ** 2 / mean for number in range(slices))
        freedom = len(of_partition) * (slices - 1)
        # Chi-square has mean `freedom` and deviation (2 * freedom) ** 0.5; six of these never happen by chance.
        assert surprise <= freedom + 6 * (2 * freedom) ** 0.5, f"{slices} slices of {partitions} partitions"


@given(key=st.binary(max_size=40), slices=st.sampled_from(NUMBERS[:-1]))
def test_a_slice_contains_two_slices_of_twice_the_number(key, slices):
    """So a change of the number never divides a slice among more than the slices that it contains."""
    assert slice_of(key, 2 * slices) // 2 == slice_of(key, slices)


@given(key=st.binary(max_size=40), slices=st.sampled_from(NUMBERS))
def test_a_slice_has_a_number_below_their_number(key, slices):
    """One slice is the whole partition."""
    assert 0 <= slice_of(key, slices) < slices <= MOST
    assert slice_of(key, 1) == 0


def test_the_hash_stays_as_it_is():
    """Clients in other languages compute it too, and a change would give keys to two members at once."""
    assert [slice_of(key, 64) for key in (b"", b"a", b"customer-17", b"\xff" * 8)] == [0, 16, 56, 51]


CELLS = [Queue("orders", "", 0, slices, number) for slices in (1, 2, 4, 8, 16) for number in range(slices)]


@given(known=st.dictionaries(st.sampled_from(CELLS), st.integers(0, 9), max_size=12), queue=st.sampled_from(CELLS))
def test_a_new_slice_starts_at_the_lowest_offset_and_knows_what_is_done_beyond(known, queue):
    """No message is lost, and none is repeated: the finest slices, each by itself, say so."""
    facts = {of: Done(of.slices, of.slice, offset) for of, offset in known.items()}

    lowest, is_all, done = progress(queue, facts)

    leaves = cut(queue, 16)
    right = [
        max((offset for of, offset in known.items() if container(leaf, of.slices) == of), default=None)
        for leaf in leaves
    ]
    offsets = [offset for offset in right if offset is not None]
    assert (None if lowest is None else lowest.offset) == min(offsets, default=None)
    assert is_all == (None not in right and bool(offsets))
    for leaf, offset in zip(leaves, right, strict=True):
        beyond = [one.offset for one in done if container(leaf, one.slices).slice == one.slice]
        is_beyond = offset is not None and (not is_all or offset > min(offsets))
        assert beyond == ([offset] if is_beyond else [])


@pytest.mark.parametrize("strategy", ["SPREAD", "BALANCED", "AVG"])
@pytest.mark.parametrize(("partitions", "slices", "members"), [(4, 8, 8), (3, 16, 5), (8, 4, 3), (1, 64, 40)])
def test_members_read_few_partitions(strategy, partitions, slices, members):
    """Each member reads all of a partition that it has a slice of."""
    queues = [piece for number in range(partitions) for piece in cut(Queue("orders", "", number), slices)]
    clients = [f"c{number:02}" for number in range(members)]

    shares = allocate(strategy, queues, clients)

    sizes = [len(share) for share in shares.values()]
    assert sum(sizes) == len(queues)
    assert max(sizes) - min(sizes) <= 1
    for share in shares.values():
        assert len({queue.whole for queue in share}) <= -(-len(share) // slices) + 1


@given(
    had=st.lists(st.sampled_from(["a", "b", "c", ""]), min_size=16, max_size=16),
    clients=st.sets(st.sampled_from("abcd"), min_size=1),
)
def test_slices_are_kept_together_without_more_moves(had, clients):
    """The strategy moves the fewest queues, whether they are slices or not."""
    queues = [piece for number in range(4) for piece in cut(Queue("orders", "", number), 4)]
    plain = [Queue("orders", "", number) for number in range(16)]
    kept, sizes = [], []
    for its in (queues, plain):
        previous = {queue: client for queue, client in zip(its, had, strict=True) if client}
        shares = allocate("BALANCED", its, sorted(clients), previous=previous)
        kept.append(sum(previous.get(queue) == client for client, share in shares.items() for queue in share))
        sizes.append({client: len(share) for client, share in shares.items()})

    assert sizes[0] == sizes[1]
    assert kept[0] >= kept[1]


def test_owners_of_overlapping_slices_are_found():
    """The rules of the record know that a slice is a part of its partition."""

    def handover(seq: int, queue: Queue, to: str) -> Handover:
        return Handover(shard="groups-0.1", seq=seq, group_id="g", queue=queue, from_=None, to=to, epoch=1, how="first")

    found = invariants.broken_ownership(
        [handover(1, Queue("orders", "", 0, 4, 3), "a"), handover(2, Queue("orders", "", 0, 2, 1), "b")]
    )

    assert found == [
        "decision groups-0.1/2 of orders-0/1of2: a owns orders-0/3of4, which has messages in common with it"
    ]
