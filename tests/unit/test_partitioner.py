"""The partitioner: the same bytes to the same partition as Kafka's own clients, or a group has two coordinators."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wakeroll_model.partitioner import murmur2, partition_of

# From Kafka's UtilsTest, as Java's signed int.
PUBLISHED = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


@pytest.mark.parametrize("key", PUBLISHED, ids=bytes.decode)
def test_murmur2_is_kafkas(key):
    assert murmur2(key) == PUBLISHED[key] % 2**32


@pytest.mark.parametrize("key", PUBLISHED, ids=bytes.decode)
def test_a_partition_is_chosen_as_kafkas_clients_choose_it(key):
    """`toPositive` drops the sign bit; an absolute value would put half of the keys elsewhere."""
    assert partition_of(key, 7) == (PUBLISHED[key] & 0x7FFFFFFF) % 7


@given(key=st.binary(max_size=300), partitions=st.integers(1, 1_000))
def test_every_key_has_a_partition(key, partitions):
    assert 0 <= partition_of(key, partitions) < partitions


def test_keys_spread_over_the_partitions():
    """A shard that had all the groups would be the only one that works."""
    counts = [0] * 4
    for number in range(4_000):
        counts[partition_of(f"group-{number}".encode(), 4)] += 1

    assert [count for count in counts if not 900 <= count <= 1_100] == []
