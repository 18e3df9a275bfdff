-- All decisions, and whether their records are archived: those decisions are complete, without gaps.
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

select
    decisions.*,
    coalesce(decisions.cause.offset >= archived.first_offset, true) as is_archived
from decisions
left join archived on decisions.cause.topic = archived.topic and decisions.cause.partition = archived.partition
