-- the cause of a decision is a record in events
with archived as (
    select
        topic,
        partition,
        min(offset) as first_offset,
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
    concat_ws('/', 'not in events:', topic, partition, offset) as found,
    'its cause is archived' as expected
from causes
left anti join events using (topic, partition, offset)
left join archived using (topic, partition)
-- Older records may be gone, and the newest may be on their way to the table.
where coalesce(causes.offset >= archived.first_offset and causes.at_ms <= archived.last_ms, true)
