"""The decisions that coordinators have published so far: their eras, and the highest settled numbers.

A decision is settled when it is old enough. A decision and its copy in the inbox are two records. If a coordinator dies
between them, one may be missing. Kafka's producer sends records in order and drops each one after two minutes. So a
record that was appended `REPLICA_OVERLAP_MS` before the newest one has no missing copy: either the copy was appended
too, or the batch failed, and its coordinator repeats it.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from wakeroll_model.config import REPLICA_OVERLAP_MS
from wakeroll_model.decision_order import ERA_SQL, SHARD_SQL
from wakeroll_pipeline.recovery.decided_eras import Header, headers_since, recorded
from wakeroll_pipeline.settings import Settings


class Reached(NamedTuple):
    """The published decisions of one shard, in its newest era."""

    era: int
    settled_seq: int
    """Number of the last settled decision of this era; 0 if none is settled."""


NOTHING = Reached(1, 0)
"""The value for a shard without decisions."""


def published_so_far(settings: Settings) -> dict[str, Reached]:
    """Return shard -> its published decisions, from the tables, and from Kafka for newer ones.

    Raises:
        NotReachable: no broker answered, or the decisions could not be read.
        StorageFailed: the store of the tables did not answer.
    """
    newest_ms, recorded = _recorded(settings)
    since_ms = {partition: at_ms - REPLICA_OVERLAP_MS for partition, at_ms in newest_ms.items()}
    return settled([*recorded, *headers_since(settings, since_ms)])


def settled(headers: Iterable[Header]) -> dict[str, Reached]:
    """Return shard -> its decisions, from headers of decisions in any order.

    >>> old, new = Header("groups", "groups-0", 1, 7, 0, 0), Header("groups", "groups-0", 1, 9, 0, 600_000)
    >>> settled([new, old])
    {'groups-0': Reached(era=1, settled_seq=7)}
    """
    known = list(headers)
    newest_ms: dict[int, int] = {}
    eras: dict[str, int] = {}
    for one in known:
        newest_ms[one.partition] = max(one.published_ms, newest_ms.get(one.partition, 0))
        eras[one.shard] = max(one.era, eras.get(one.shard, 0))
    seqs = dict.fromkeys(eras, 0)
    for one in known:
        if one.era == eras[one.shard] and one.published_ms <= newest_ms[one.partition] - REPLICA_OVERLAP_MS:
            seqs[one.shard] = max(one.seq, seqs[one.shard])
    return {shard: Reached(era, seqs[shard]) for shard, era in sorted(eras.items())}


def _recorded(settings: Settings) -> tuple[Mapping[int, int], list[Header]]:
    """Return partition -> append time of its newest decision in the tables, and for each shard its last old decision.

    A decision is old if it was appended `REPLICA_OVERLAP_MS` before the newest one of its partition.
    """
    rows = recorded(
        settings,
        f"""with newest as (select partition, max(published_ms) as newest_ms from decisions group by all)
            select partition, newest_ms, {SHARD_SQL} as shard, {ERA_SQL} as era, max(seq) as seq,
                max(seq) filter (where published_ms <= newest_ms - $overlap_ms) as old
            from decisions join newest using (partition) group by all having era is not null""",
        overlap_ms=REPLICA_OVERLAP_MS,
    )
    headers = []
    for row in rows:
        machine, old_ms = row.shard.partition("-")[0], row.newest_ms - REPLICA_OVERLAP_MS
        # The newest one is here for its era; Kafka has it too, if it is not older than the topic.
        headers.append(Header(machine, row.shard, row.era, row.seq, row.partition, row.newest_ms))
        if row.old is not None:
            headers.append(Header(machine, row.shard, row.era, row.old, row.partition, old_ms))
    return {row.partition: row.newest_ms for row in rows}, headers
