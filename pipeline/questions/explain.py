"""Why is a queue whose it is?  The chain of rows that made it so, in words.

Event → rebalance → hand-over → assignment: each decision names its cause, so the chain is read, not guessed.
"""

import json
from collections.abc import Iterator
from operator import itemgetter
from typing import Any, NamedTuple

from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as f

from model.decision_order import ORDER, SHARD_SQL
from model.queue import Queue
from pipeline.ledger.known_groups import refuse_unknown_group
from wakeroll.errors import InvalidUsage
from wakeroll.reset import EpochMs


class Step(NamedTuple):
    """One thing that happened, on the way to what is asked about."""

    at_ms: int
    """Log time, epoch ms."""
    what: str
    where: str = ""
    """The record that it stands in or follows from: ``topic-partition@offset``."""


Placed = tuple[int, Step]
"""A step, behind the offset of the record that it stands in or follows from: a group's records are in one partition."""


class Explanation(NamedTuple):
    """The answer in a sentence, and what led to it, oldest first: in the order of the log, not of its times."""

    answer: str
    steps: list[Step]


def explain(spark: SparkSession, group_id: str, queue: Queue, at_ms: int | None = None) -> Explanation:
    """Say who owned a queue at a moment, and why.

    Args:
        spark: a session that knows the ledger's tables and views (`pipeline.ledger.tables.open_views`).
        group_id: a group in clustering mode.
        queue: one of its topics'.
        at_ms: log time, epoch ms: after the last decision whose log time is not later; None: the newest on record.

    Raises:
        InvalidUsage: there is no such group, or the queue never was anybody's in it; the message says what there is.
    """
    until = f.lit(True) if at_ms is None else f.col("at_ms") <= at_ms
    handovers = _of_queue(spark.table("handovers"), group_id, queue)
    last = _newest(handovers.where(until))
    if last is None:
        refuse_unknown_group(spark, group_id)
        raise InvalidUsage(_why_not(spark, group_id, queue, at_ms))
    asked = f"{queue} of {group_id}"
    when = "" if at_ms is None else f", as of {EpochMs(at_ms)}"
    later = _newest(_later_eras(spark, last).where(until))
    if later is not None:
        answer = (
            f"{asked} is nobody's since era {later.era} began: the coordinator lost its state, and nobody has claimed "
            f"the queue; the last hand-over on record, at {EpochMs(last.at_ms)} (epoch {last.epoch}), gave it to "
            f"{last.to or 'nobody'}{when}"
        )
    elif last.to is None:
        answer = f"{asked} is nobody's since {EpochMs(last.at_ms)} (epoch {last.epoch}){when}"
    else:
        answer = f"{asked} is {last.to}'s since {EpochMs(last.at_ms)} (epoch {last.epoch}){when}"
    steps = [*_rebalance_steps(spark, last), *_handover_steps(spark, last, handovers)]
    if last.to is None:
        steps += _unassigned_steps(spark, group_id, queue, at_ms)
    return Explanation(answer, [step for _, step in sorted(steps, key=itemgetter(0))])


def _rebalance_steps(spark: SparkSession, last: Row) -> Iterator[Placed]:
    """Tell the rebalance that wanted the queue to go where it went, and what asked for that."""
    rebalances = spark.table("rebalances").where((f.col("group_id") == last.group_id) & (f.col("epoch") <= last.epoch))
    rebalance = _newest(rebalances.where(_is_before(last)))
    if rebalance is None:
        return
    asked = [_place(cause) for cause in rebalance.causes or [rebalance.cause]]
    yield from _events(spark, last.group_id, asked)
    what = (
        f"rebalance to epoch {rebalance.epoch} by {rebalance.trigger}: {rebalance.strategy} shares "
        f"{_many(rebalance.queues, 'queue')} among {_many(rebalance.clients, 'client')}, {rebalance.moved} to be moved"
        + "".join(f"; {note}" for note in rebalance.notes)
    )
    yield rebalance.cause.offset, Step(rebalance.at_ms, what, _record(rebalance.cause))


def _handover_steps(spark: SparkSession, last: Row, handovers: DataFrame) -> Iterator[Placed]:
    """Tell how the queue came from one to the other; `handovers` are all of the queue."""
    owner, freed = last["from"], last
    if last.released_ms not in (None, last.at_ms):
        # It could not be given at once: it came free by the hand-over before this one.
        freed = _newest(handovers.where(_is_before(last))) or last
    if last.revoked_ms is not None and owner is not None:
        told_then = f.col("at_ms") == last.revoked_ms
        asked = _newest(_assignments(spark, last.group_id, owner).where(_is_before(last) & told_then)) or freed
        yield asked.cause.offset, Step(last.revoked_ms, f"{owner} was asked to give it up")
    if last.released_ms is not None and owner is not None:
        how = _HOW.get(last.how, f"it came free from {{}} ({last.how})").format(owner)
        yield freed.cause.offset, Step(last.released_ms, how, _record(freed.cause))
    if last.to is None:
        return
    assigned_ms = last.at_ms if last.assigned_ms is None else last.assigned_ms
    told = _newest(_caused(_assignments(spark, last.group_id, last.to), [_place(last.cause)]))
    start = "" if told is None else _start(json.loads(told.json), last.queue)
    first = " as its first owner" if last.how == "first" else ""
    yield last.cause.offset, Step(assigned_ms, f"it was given to {last.to}{first}{start}", _record(last.cause))


_HOW = {
    "released": "{} released it",
    "unregistered": "{} left the group",
    "expired": "{} was silent for longer than its session: expired",
    "replaced": "a new instance replaced {}",
    "timeout": "{} did not release it in time: taken from it, which may repeat messages",
    "eager": "taken from {} at once: the group hands over eagerly",
    "removed": "the queue is no longer routed or subscribed; {} had it",
}


_FROM = {
    "first": "from its first message on",
    "last": "from its end on",
    "timestamp": "from the time on that it asked for",
}


def _unassigned_steps(spark: SparkSession, group_id: str, queue: Queue, at_ms: int | None) -> Iterator[Placed]:
    """Tell why nobody gets it."""
    rebalances = spark.table("rebalances").where(f.col("group_id") == group_id)
    newest = _newest(rebalances if at_ms is None else rebalances.where(f.col("at_ms") <= at_ms))
    if newest is None:
        return
    asked = queue.topic, queue.broker, queue.queue_id
    reasons = {(one.queue.topic, one.queue.broker, one.queue.queue_id): one.reason for one in newest.unassigned}
    if asked in reasons:
        says = f"gives it to nobody: {reasons[asked]}"
    elif (newest.unassigned_count or 0) > len(reasons):
        says = f"gives {newest.unassigned_count} queues to nobody; one of them: {newest.unassigned[0].reason}"
    else:
        return
    yield newest.cause.offset, Step(newest.at_ms, f"epoch {newest.epoch} {says}", _record(newest.cause))


def _events(spark: SparkSession, group_id: str, asked: list[tuple[str, int, int]]) -> Iterator[Placed]:
    """Tell the events that asked for a rebalance, and what they changed in the group."""
    changes: dict[str, list[str]] = {}
    memberships = spark.table("memberships").where(f.col("group_id") == group_id)
    for row in _caused(memberships, asked).orderBy(*ORDER).collect():
        change = f"{row.client_id or 'the group'} {row.change}" + (f" ({row.detail})" if row.detail else "")
        changes.setdefault(_record(row.cause), []).append(change)
    for row in _caused(spark.table("events"), asked, "").orderBy("offset").collect():
        where = f"{row.topic}-{row.partition}@{row.offset}"
        said = _client(row.value)
        what = f"{row.type or 'a record'}{said}"
        yield row.offset, Step(row.at_ms, what + "".join(f", {change}" for change in changes.get(where, ())), where)


def _caused(rows: DataFrame, asked: list[tuple[str, int, int]], of: str = "cause.") -> DataFrame:
    """Keep the rows whose topic, partition and offset are among these."""
    is_asked = f.lit(False)
    for where in asked:
        here = f.lit(True)
        for name, value in zip(("topic", "partition", "offset"), where, strict=True):
            here = here & (f.col(of + name) == value)
        is_asked = is_asked | here
    return rows.where(is_asked)


def _client(value: bytes | None) -> str:
    """Return whose event it is, or which topic it tells of."""
    try:
        said: Any = json.loads(value or b"")
    except ValueError:
        return ""
    who = said.get("client_id") or said.get("topic") if isinstance(said, dict) else None
    return f" of {who}" if isinstance(who, str) else ""


def _start(assignment: dict[str, Any], queue: Row) -> str:
    for one in assignment["queues"]:
        if one["queue"] == queue.asDict():
            offset, policy = one["start"].get("offset"), one["start"].get("policy")
            return f", from offset {offset} on" if offset is not None else f", {_FROM[policy]}"
    return ""


def _of_queue(rows: DataFrame, group_id: str, queue: Queue) -> DataFrame:
    return rows.where(
        (f.col("group_id") == group_id)
        & (f.col("queue.topic") == queue.topic)
        & (f.col("queue.broker") == queue.broker)
        & (f.col("queue.queue_id") == queue.queue_id)
    )


def _later_eras(spark: SparkSession, decided: Row) -> DataFrame:
    """Return what was decided by later eras of the shard that decided this."""
    shard = decided.shard.rpartition(".")[0]
    return spark.table("decisions").where((f.expr(SHARD_SQL) == shard) & (f.col("era") > decided.era))


def _assignments(spark: SparkSession, group_id: str, client_id: str) -> DataFrame:
    """Return what a client was told of its queues."""
    is_its = (f.col("group_id") == group_id) & (f.col("client_id") == client_id)
    return spark.table("decisions").where((f.col("kind") == "assignment") & is_its)


def _newest(rows: DataFrame) -> Row | None:
    """Return the row that was decided last, of rows about one group."""
    return rows.orderBy(*map(f.desc, ORDER)).first()


def _is_before(decided: Row) -> Column:
    """Condition on decisions about the same group: they were made before this one."""
    era, seq = f.col("era"), f.col("seq")
    is_before: Column = (era < decided.era) | ((era == decided.era) & (seq < decided.seq))
    return is_before


def _many(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _place(cause: Row) -> tuple[str, int, int]:
    return cause.topic, cause.partition, cause.offset


def _record(cause: Row) -> str:
    return f"{cause.topic}-{cause.partition}@{cause.offset}"


def _why_not(spark: SparkSession, group_id: str, queue: Queue, at_ms: int | None) -> str:
    """Say what is wrong with a question about a group that there is."""
    handovers = spark.table("handovers").where(f.col("group_id") == group_id)
    topics = [row.topic for row in handovers.select("queue.topic").distinct().orderBy("topic").limit(20).collect()]
    if topics:
        when = "" if at_ms is None else f" until {EpochMs(at_ms)}"
        return f"{queue} never was anybody's in {group_id}{when}; there are queues of {', '.join(topics)}"
    return f"nobody owns a queue in {group_id}: in a broadcasting group every member reads every queue"
