-- Which records must have an answer by now, and have no rejection?  One row per record: see `Awaited`.
with refused as (
    select
        decisions.cause.topic,
        decisions.cause.partition,
        decisions.cause.offset
    from decisions
    where kind = 'rejected'
),

-- Around which records are decisions lost, or records?  One row per range: from_offset and to_offset are no part of it.
around as (
    select
        decisions.cause.topic,
        decisions.cause.partition,
        coalesce(max(case when seq < first_lost then decisions.cause.offset end), -1) - 1 as from_offset,
        coalesce(min(case when seq > last_lost then decisions.cause.offset end), 9223372036854775806) + 1 as to_offset
    from decisions
    inner join lost_rows on lost_rows.table_name = 'decisions' and decisions.shard = lost_rows.shard
    group by decisions.cause.topic, decisions.cause.partition, lost_rows.shard, first_lost, last_lost
    union all
    select
        topic,
        partition,
        first_lost as from_offset,
        last_lost as to_offset
    from lost_rows
    where table_name = 'events'
)

select awaited.*
from awaited
inner join reach using (topic, partition)
anti join refused
    on awaited.topic = refused.topic and awaited.partition = refused.partition and awaited.offset = refused.offset
anti join around
    on
        awaited.topic = around.topic
        and awaited.partition = around.partition
        and awaited.offset < around.to_offset
        and awaited.until_offset > around.from_offset
where awaited.offset >= reach.from_offset and awaited.until_offset <= reach.to_offset
