"""Slices: the hash that cuts a partition."""

from collections import Counter
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wakeroll_model.partitioner import partition_of
from wakeroll_model.slices import MOST, key_of_offset, slice_of

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
