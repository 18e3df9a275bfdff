"""The SQL queries of the demo: owners of a queue, moves of each rebalance, rejections, and latencies."""

from pyspark.sql import Row, SparkSession
from rich.console import Console
from rich.table import Table

from pipeline.ledger.tables import open_views
from pipeline.settings import Settings
from pipeline.spark.session import start_brief_session

WHO_OWNED = """
select
    coalesce(client_id, '(nobody)') as owner,
    date_format(timestamp_millis(from_ms), 'HH:mm:ss.SSS') as since,
    date_format(
        timestamp_millis(lead(from_ms) over (partition by topic, broker, queue_id order by era, seq)), 'HH:mm:ss.SSS'
    ) as until,
    epoch,
    how
from assignments
where group_id = '{group}' and concat(topic, '-', queue_id) = '{queue}'
order by era, seq
"""

WHAT_MOVED = """
select
    rebalances.epoch,
    rebalances.trigger,
    rebalances.clients,
    concat_ws(', ', sort_array(collect_list(
        concat(queue.queue_id, ': ', coalesce(handovers.`from`, 'nobody'), ' > ', coalesce(handovers.`to`, 'nobody'))
    ))) as moves
from rebalances
left join handovers
    on rebalances.group_id = handovers.group_id and rebalances.epoch = handovers.epoch
    and handovers.assigned_ms is not null
where rebalances.group_id = '{group}'
group by rebalances.epoch, rebalances.trigger, rebalances.clients
order by rebalances.epoch
"""

WHAT_WAS_REJECTED = """
select rule, detail, client_id, cause.partition, cause.offset
from rejections
where group_id = '{group}'
order by era, seq
"""

HOW_FAST = """
select
    count(*) as pairs,
    percentile_approx(decisions.published_ms - events.at_ms, 0.5, 10000) as p50_ms,
    percentile_approx(decisions.published_ms - events.at_ms, 0.99, 10000) as p99_ms
from decisions
inner join events
    on decisions.cause.topic = events.topic and decisions.cause.partition = events.partition
    and decisions.cause.offset = events.offset
where decisions.kind = 'assignment' and events.type = 'heartbeat'
"""


def show_answers(settings: Settings, group: str, queue: str, out: Console) -> None:
    """Query the tables and print the owners of a queue, the moves of each rebalance, the rejections and latencies."""
    with out.status("starting Spark to ask the tables"):
        spark = start_brief_session(settings, "wakeroll demo")
    try:
        open_views(spark, settings.warehouse)
        _show(spark, out, f"SQL: who owned {queue}, and when?", WHO_OWNED.format(group=group, queue=queue))
        _show(spark, out, "SQL: what did each rebalance move?", WHAT_MOVED.format(group=group))
        _show(spark, out, "SQL: what was rejected?", WHAT_WAS_REJECTED.format(group=group))
        fast: Row = spark.sql(HOW_FAST).collect()[0]
        out.print(
            f"from a heartbeat's append to its assignment's append, by the broker's clock: "
            f"p50 {fast.p50_ms} ms, p99 {fast.p99_ms} ms ({fast.pairs} pairs, all work of this demo on this machine)"
        )
    finally:
        spark.stop()


def _show(spark: SparkSession, out: Console, title: str, query: str) -> None:
    rows = spark.sql(query)
    table = Table(title=title)
    for name in rows.columns:
        table.add_column(name)
    for row in rows.collect():
        table.add_row(*("" if value is None else str(value) for value in row))
    out.print(table)
