"""The order of decisions, declared once: by the era of their shard as a number, then by seq.

All decisions about a group come from the one shard of its key, and a new era of a shard begins after all decisions of
the era before. When the number of shards grows, a group may move: its new shard continues the era and the seq of the
old one. So (era, seq) orders all decisions about a group, a member, a queue or an offset. No other field does:
log times step back when a partition's leader changes to a broker whose clock is behind, ``groups-1.10`` sorts before
``groups-1.9`` as text, and seq counts from 1 again in each era. Decisions of different shards have no order except
their log times.
"""

ORDER = ("era", "seq")
"""Columns that order rows of decisions; the last row is the newest."""

ERA_SQL = "try_cast(split_part(shard, '.', -1) as int)"
"""SQL of Spark and DuckDB for the era of a row, from its column `shard`; null if the name has none."""

SHARD_SQL = "split_part(shard, '.', 1)"
"""SQL for the shard of a row without its era, from its column `shard`."""


def era_of(shard: str) -> int:
    """Return the era that a shard's name ends with; 0 if it has none.

    >>> era_of("groups-1.10")
    10
    """
    era = shard.rpartition(".")[2]
    return int(era) if era.isascii() and era.isdecimal() else 0


def without_era(shard: str) -> str:
    """Return the name of a shard without its era.

    >>> without_era("groups-1.10")
    'groups-1'
    """
    return shard.rpartition(".")[0]


def order_of(shard: str, seq: int) -> tuple[int, int]:
    """Return the place of a decision among all decisions of its shard, in any era: (era, seq).

    >>> order_of("groups-1.9", 700) < order_of("groups-1.10", 1)
    True
    """
    return era_of(shard), seq
