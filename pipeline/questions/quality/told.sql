-- Which decisions are all there, one behind the other?  Those whose records are archived; one row a (shard, seq).
--
-- Of what is older only the last words are kept: what was said between them is gone.
with archived as (
    select
        topic,
        partition,
        min(offset) as first_offset
    from events
    group by topic, partition
)

select decisions.*
from decisions
left join archived on decisions.cause.topic = archived.topic and decisions.cause.partition = archived.partition
where coalesce(decisions.cause.offset >= archived.first_offset, true)
