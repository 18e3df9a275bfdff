-- the cause of a decision is a record in events
with archived as (
    select
        topic,
        partition,
        min(events.offset) as first_offset,
        max(at_ms) as last_ms
    from events
    group by topic, partition
),

causes as (
    select
        shard,
        seq,
        at_ms,
        decisions.cause.topic,
        decisions.cause.partition,
        decisions.cause.offset
    from decisions
)

select
    concat_ws('/', shard, seq) as at,
    concat_ws('/', 'not in events:', causes.topic, causes.partition, causes.offset) as found,
    'an archived cause' as expected
from causes
anti join events
    on causes.topic = events.topic and causes.partition = events.partition and causes.offset = events.offset
anti join lost_rows
    on
        lost_rows.table_name = 'events'
        and causes.topic = lost_rows.topic
        and causes.partition = lost_rows.partition
        and causes.offset between lost_rows.first_lost and lost_rows.last_lost
left join archived on causes.topic = archived.topic and causes.partition = archived.partition
-- Older records may be deleted already, and the newest may not be written yet.
where coalesce(causes.offset >= archived.first_offset and causes.at_ms <= archived.last_ms, true)
