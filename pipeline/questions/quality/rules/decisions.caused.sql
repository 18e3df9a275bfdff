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
    'an archived cause' as expected
from causes
left anti join events using (topic, partition, offset)
left join archived using (topic, partition)
-- Older records may be deleted already, and the newest may not be written yet.
where coalesce(causes.offset >= archived.first_offset and causes.at_ms <= archived.last_ms, true)
