-- Invariant 1: a queue has at most one owner at any point of the log.
--
-- Each period ends where the next one begins, so they overlap only if the order of decisions differs from that of the
-- records that caused them.  Log times cannot be compared: they step back with the clock of a new leader.
with timeline as (select * from {{ ref('ownership_timeline') }}),

decisions as (select * from {{ ref('stg_decisions') }}),

beside_the_last as (
    select
        timeline.*,
        decisions.cause_offset,
        lag(decisions.cause_offset) over before_it as last_cause_offset,
        lag(timeline.owned_to) over before_it as last_to
    from timeline
    inner join decisions using (shard, seq)
    window before_it as (
        partition by
            timeline.group_id,
            timeline.topic,
            timeline.broker,
            timeline.queue_id,
            timeline.slice,
            decisions.cause_topic,
            decisions.cause_partition
        order by timeline.era, timeline.seq
    )
),

final as (
    select *
    from beside_the_last
    where cause_offset < last_cause_offset or owned_from < last_to or owned_to < owned_from
)

select * from final
