-- Which decisions are complete, without gaps?  Those whose records are archived; one row per (shard, seq).
--
-- Of older decisions, retention keeps only the latest about each subject.
with archived as (
    select
        topic,
        partition,
        min(events.offset) as first_offset
    from events
    group by topic, partition
)

select decisions.*
from decisions
left join archived on decisions.cause.topic = archived.topic and decisions.cause.partition = archived.partition
where coalesce(decisions.cause.offset >= archived.first_offset, true)
