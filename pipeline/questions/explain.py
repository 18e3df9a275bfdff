"""The owner of a queue, and the chain of records that led to it: event → rebalance → hand-over → assignment.

Each decision names its cause, so the chain is read from the tables and not guessed.
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
from wakeroll.epoch_ms import EpochMs
from wakeroll.errors import InvalidUsage


class Step(NamedTuple):
    """One step of the chain."""

    at_ms: int
    """Log time (epoch ms)."""
    what: str
    """The step in words."""
    where: str = ""
    """The record of the step, or the record that caused it: ``topic-partition@offset``; empty if none."""


Placed = tuple[int, Step]
"""Offset of the record of a step, and the step.  A group's records are in one partition, so offsets order the steps."""


class Explanation(NamedTuple):
    """The answer as a sentence, and the steps that led to it, oldest first by offset (not by time)."""

    answer: str
    steps: list[Step]


def explain(spark: SparkSession, group_id: str, queue: Queue, at_ms: int | None = None) -> Explanation:
    """Explain who owned a queue at a moment, and why.

    Args:
        spark: session with the tables and views of the ledger (`pipeline.ledger.tables.open_views`).
        group_id: a group in clustering mode.
        queue: a queue of one of its topics.
        at_ms: the moment in log time (epoch ms), inclusive; None: the end of the recorded log.

    Raises:
        InvalidUsage: the group does not exist, or the queue never had an owner in it; the message names the groups or
            the topics that exist.
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
            f"{asked} has no owner since era {later.era} began: the coordinator lost its state, and no member has "
            f"claimed the queue; the owner after the last recorded hand-over, at {EpochMs(last.at_ms)} (epoch "
            f"{last.epoch}), was {last.to or 'none'}{when}"
        )
    elif last.to is None:
        answer = f"{asked} has no owner since {EpochMs(last.at_ms)} (epoch {last.epoch}){when}"
    else:
        answer = f"{asked} is owned by {last.to} since {EpochMs(last.at_ms)} (epoch {last.epoch}){when}"
    steps = [*_rebalance_steps(spark, last), *_handover_steps(spark, last, handovers)]
    if last.to is None:
        steps += _unassigned_steps(spark, group_id, queue, at_ms)
    return Explanation(answer, [step for _, step in sorted(steps, key=itemgetter(0))])


def _rebalance_steps(spark: SparkSession, last: Row) -> Iterator[Placed]:
    """Yield the rebalance whose target includes this hand-over, and the events that caused it."""
    rebalances = spark.table("rebalances").where((f.col("group_id") == last.group_id) & (f.col("epoch") <= last.epoch))
    rebalance = _newest(rebalances.where(_is_before(last)))
    if rebalance is None:
        return
    asked = [_place(cause) for cause in rebalance.causes or [rebalance.cause]]
    yield from _events(spark, last.group_id, asked)
    what = (
        f"rebalance to epoch {rebalance.epoch} by {rebalance.trigger}: {rebalance.strategy} shares "
        f"{_many(rebalance.queues, 'queue')} among {_many(rebalance.clients, 'client')}, {rebalance.moved} must move"
        + "".join(f"; {note}" for note in rebalance.notes)
    )
    yield rebalance.cause.offset, Step(rebalance.at_ms, what, _record(rebalance.cause))


def _handover_steps(spark: SparkSession, last: Row, handovers: DataFrame) -> Iterator[Placed]:
    """Yield revocation, release and assignment of the queue; `handovers` holds all hand-overs of the queue."""
    owner, freed = last["from"], last
    if last.released_ms not in (None, last.at_ms):
        # The queue was not assigned when it was released: the hand-over before this one released it.
        freed = _newest(handovers.where(_is_before(last))) or last
    if last.revoked_ms is not None and owner is not None:
        told_then = f.col("at_ms") == last.revoked_ms
        asked = _newest(_assignments(spark, last.group_id, owner).where(_is_before(last) & told_then)) or freed
        yield asked.cause.offset, Step(last.revoked_ms, f"a revocation was sent to {owner}")
    if last.released_ms is not None and owner is not None:
        how = _HOW.get(last.how, f"{{}} lost the queue ({last.how})").format(owner)
        yield freed.cause.offset, Step(last.released_ms, how, _record(freed.cause))
    if last.to is None:
        return
    assigned_ms = last.at_ms if last.assigned_ms is None else last.assigned_ms
    told = _newest(_caused(_assignments(spark, last.group_id, last.to), [_place(last.cause)]))
    start = "" if told is None else _start(json.loads(told.json), last.queue)
    first = " as its first owner" if last.how == "first" else ""
    yield (
        last.cause.offset,
        Step(assigned_ms, f"the queue was assigned to {last.to}{first}{start}", _record(last.cause)),
    )


_HOW = {
    "released": "{} released the queue",
    "unregistered": "{} left the group",
    "expired": "{} expired: its session timed out without a heartbeat",
    "replaced": "a new instance replaced {}",
    "timeout": "{} lost the queue: it did not release it within the revoke timeout, so messages may repeat",
    "eager": "{} lost the queue at once: the hand-over of the group is eager",
    "removed": "{} lost the queue: it is no longer routed or subscribed",
}


_FROM = {
    "first": "from its first message",
    "last": "from its end offset",
    "timestamp": "from the timestamp in its preferences",
}


def _unassigned_steps(spark: SparkSession, group_id: str, queue: Queue, at_ms: int | None) -> Iterator[Placed]:
    """Yield the reason why the newest rebalance leaves the queue without an owner."""
    rebalances = spark.table("rebalances").where(f.col("group_id") == group_id)
    newest = _newest(rebalances if at_ms is None else rebalances.where(f.col("at_ms") <= at_ms))
    if newest is None:
        return
    asked = queue.topic, queue.broker, queue.queue_id
    reasons = {(one.queue.topic, one.queue.broker, one.queue.queue_id): one.reason for one in newest.unassigned}
    if asked in reasons:
        says = f"leaves the queue unassigned: {reasons[asked]}"
    elif (newest.unassigned_count or 0) > len(reasons):
        says = f"leaves {newest.unassigned_count} queues unassigned; the reason of one: {newest.unassigned[0].reason}"
    else:
        return
    yield newest.cause.offset, Step(newest.at_ms, f"epoch {newest.epoch} {says}", _record(newest.cause))


def _events(spark: SparkSession, group_id: str, asked: list[tuple[str, int, int]]) -> Iterator[Placed]:
    """Yield the events that caused a rebalance, with the changes of members that followed."""
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
    """Return the rows whose topic, partition and offset are among those in `asked`."""
    is_asked = f.lit(False)
    for where in asked:
        here = f.lit(True)
        for name, value in zip(("topic", "partition", "offset"), where, strict=True):
            here = here & (f.col(of + name) == value)
        is_asked = is_asked | here
    return rows.where(is_asked)


def _client(value: bytes | None) -> str:
    """Return the client or the topic of an event as text, such as `" of c1"`; empty if it has none."""
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
            return f", from offset {offset}" if offset is not None else f", {_FROM[policy]}"
    return ""


def _of_queue(rows: DataFrame, group_id: str, queue: Queue) -> DataFrame:
    return rows.where(
        (f.col("group_id") == group_id)
        & (f.col("queue.topic") == queue.topic)
        & (f.col("queue.broker") == queue.broker)
        & (f.col("queue.queue_id") == queue.queue_id)
    )


def _later_eras(spark: SparkSession, decided: Row) -> DataFrame:
    """Return the decisions of later eras of the same shard."""
    shard = decided.shard.rpartition(".")[0]
    return spark.table("decisions").where((f.expr(SHARD_SQL) == shard) & (f.col("era") > decided.era))


def _assignments(spark: SparkSession, group_id: str, client_id: str) -> DataFrame:
    """Return the assignments that a client received."""
    is_its = (f.col("group_id") == group_id) & (f.col("client_id") == client_id)
    return spark.table("decisions").where((f.col("kind") == "assignment") & is_its)


def _newest(rows: DataFrame) -> Row | None:
    """Return the latest decision among rows about one group; None if there is none."""
    return rows.orderBy(*map(f.desc, ORDER)).first()


def _is_before(decided: Row) -> Column:
    """Return the condition that a decision about the same group precedes this one."""
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
    """Return the error for a queue that has no hand-over in an existing group."""
    handovers = spark.table("handovers").where(f.col("group_id") == group_id)
    topics = [row.topic for row in handovers.select("queue.topic").distinct().orderBy("topic").limit(20).collect()]
    if topics:
        when = "" if at_ms is None else f" until {EpochMs(at_ms)}"
        return f"{queue} never had an owner in {group_id}{when}; the group has queues of {', '.join(topics)}"
    return f"no queue has an owner in {group_id}: in a broadcasting group every member reads every queue"
