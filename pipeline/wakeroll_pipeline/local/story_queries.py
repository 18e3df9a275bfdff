"""The SQL queries of the demo: owners of a queue, moves of each rebalance, rejections, and latencies."""

import shlex
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from wakeroll.epoch_ms import EpochMs
from wakeroll_pipeline.ledger.duck_ledger import duck_ledger
from wakeroll_pipeline.ledger.ledger import Ledger, Value
from wakeroll_pipeline.settings import Settings

WHO_OWNED = """
select
    coalesce(client_id, '(nobody)') as owner,
    strftime(timestamp_millis(from_ms), '%H:%M:%S.%g') as since,
    strftime(
        timestamp_millis(lead(from_ms) over (partition by topic, broker, queue_id order by era, seq)), '%H:%M:%S.%g'
    ) as until,
    epoch,
    how
from assignments
where group_id = $group_id and concat(topic, '-', queue_id) = $queue
order by era, seq
"""

WHAT_MOVED = """
select
    rebalances.epoch,
    rebalances.trigger,
    rebalances.clients,
    string_agg(
        concat(queue.queue_id, ': ', coalesce(handovers."from", 'nobody'), ' > ', coalesce(handovers."to", 'nobody')),
        ', ' order by queue.queue_id
    ) filter (handovers.group_id is not null) as moves
from rebalances
left join handovers
    on rebalances.group_id = handovers.group_id and rebalances.epoch = handovers.epoch
    and handovers.assigned_ms is not null
where rebalances.group_id = $group_id
group by rebalances.epoch, rebalances.trigger, rebalances.clients
order by rebalances.epoch
"""

WHAT_WAS_REJECTED = """
select rule, detail, client_id, cause.partition, cause.offset
from rejections
where group_id = $group_id
order by era, seq
"""

HOW_FAST = """
select
    count(*) as pairs,
    cast(quantile_disc(decisions.published_ms - events.at_ms, 0.5) as bigint) as p50_ms,
    cast(quantile_disc(decisions.published_ms - events.at_ms, 0.99) as bigint) as p99_ms
from decisions
inner join events
    on decisions.cause.topic = events.topic and decisions.cause.partition = events.partition
    and decisions.cause.offset = events.offset
where decisions.kind = 'assignment' and events.type = 'heartbeat'
"""

WHO_OWNED_IN_KAFKA = """
select
    assignments.group_id as "group",
    coalesce(client_id, '(nobody)') as owner,
    strftime(timestamp_millis(from_ms), '%H:%M:%S.%g') as since,
    epoch,
    how
from assignments
where concat(topic, '-', queue_id) = $queue and group_id = $group_id
order by era, seq
"""

WHY_REBALANCED = """
select group_id as "group", trigger, count(*) as rebalances, sum(moved) as moved
from rebalances
group by group_id, trigger
order by group_id, rebalances desc, trigger
"""

HOW_LONG_UNOWNED = """
select
    group_id as "group",
    count(*) as handovers,
    max(assigned_ms - released_ms) as longest_without_owner_ms
from handovers
where assigned_ms is not null
group by group_id
order by group_id
"""


WHAT_MOVED_BY_A_DEATH = """
select concat(topic, '-', queue_id) as queue, client_id, from_ms
from assignments
where group_id = $group_id and how = 'died' and client_id is not null
order by era, seq
limit 1
"""


def command(words: str) -> str:
    """Return a command as this process was called, so that it can be copied: `.venv/bin/wakeroll` and the words."""
    called = Path(sys.argv[0])
    return f"{called if called.name == 'wakeroll' else 'wakeroll'} {words}"


def show_kafka_answers(settings: Settings, queue: str, group: str, out: Console) -> None:
    """Query the tables of watched groups: each rebalance, the owners of a queue, the time that queues had no owner."""
    with duck_ledger(settings.warehouse) as ledger:
        _show(ledger, out, "SQL: why did each group rebalance?", WHY_REBALANCED)
        _show(ledger, out, f"SQL: who owned {queue} of {group}?", WHO_OWNED_IN_KAFKA, group_id=group, queue=queue)
        _show(ledger, out, "SQL: how long had queues no owner?", HOW_LONG_UNOWNED)


def show_answers(settings: Settings, group: str, queue: str, out: Console) -> None:
    """Query the tables and print the owners of a queue, the moves of each rebalance, the rejections and latencies."""
    with duck_ledger(settings.warehouse) as ledger:
        _show(ledger, out, f"SQL: who owned {queue}, and when?", WHO_OWNED, group_id=group, queue=queue)
        _show(ledger, out, "SQL: what did each rebalance move?", WHAT_MOVED, group_id=group)
        _show(ledger, out, "SQL: what was rejected?", WHAT_WAS_REJECTED, group_id=group)
        [fast] = ledger.rows(HOW_FAST)
        out.print(
            f"from a heartbeat's append to its assignment's append, by the broker's clock: "
            f"p50 {fast.p50_ms} ms, p99 {fast.p99_ms} ms ({fast.pairs} pairs, all work of this demo on this machine)"
        )
        for moved in ledger.rows(WHAT_MOVED_BY_A_DEATH, group_id=group):
            asked = f"explain {group} {moved.queue} --home {shlex.quote(settings.home)} --at {EpochMs(moved.from_ms)}"
            out.print(
                f"why did {moved.queue} go to {moved.client_id}?  {command(asked)}", soft_wrap=True, highlight=False
            )


def _show(ledger: Ledger, out: Console, title: str, query: str, **values: Value) -> None:
    rows = ledger.rows(query, **values)
    table = Table(title=title)
    for name in rows[0].names if rows else ():
        table.add_column(name)
    for row in rows:
        table.add_row(*("" if value is None else str(value) for value in row))
    out.print(table)
