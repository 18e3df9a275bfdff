-- How large was the lag of each group on each day?
--
-- The percentiles are of the time: for half of `observed_s`, the lag was at most lag_p50_messages. The lag of a partition
-- that is cut is here the mean of its slices.
with offsets as (select * from {{ source('ledger', 'offsets') }}),

end_offsets as (select * from {{ source('ledger', 'end_offsets') }}),

events as (select * from {{ source('ledger', 'events') }}),

clock as (select max(at_ms) as as_of_ms from events),

days as (select distinct at_ms - at_ms % 86400000 as day_ms from events),

consumed as (select distinct group_id, topic, broker, queue_id, slice from offsets where mode = 'clustering'),

said as (
    select
        group_id,
        topic,
        broker,
        queue_id,
        slice,
        at_ms,
        -- An offset that was deleted has no lag.
        case when deleted then 9223372036854775807 else committed_offset end as committed_offset,
        null as end_offset,
        null as first_offset
    from offsets
    where mode = 'clustering'
    union all
    select group_id, topic, broker, queue_id, slice, at_ms, null as committed_offset, end_offset, first_offset
    from end_offsets
    inner join consumed using (topic, broker, queue_id)
),

changes as (
    select
        group_id,
        topic,
        broker,
        queue_id,
        slice,
        at_ms,
        max(committed_offset) as committed_offset,
        max(end_offset) as end_offset,
        max(first_offset) as first_offset
    from said
    group by group_id, topic, broker, queue_id, slice, at_ms
),

known as (
    select
        group_id,
        topic,
        broker,
        queue_id,
        slice,
        at_ms,
        max_by(committed_offset, case when committed_offset is not null then at_ms end)
            over until_then as committed_offset,
        max_by(end_offset, case when end_offset is not null then at_ms end) over until_then as end_offset,
        max_by(first_offset, case when first_offset is not null then at_ms end) over until_then as first_offset
    from changes
    window until_then as (
        partition by group_id, topic, broker, queue_id, slice
        order by at_ms
        rows between unbounded preceding and current row
    )
),

behind as (
    select
        *,
        greatest(end_offset - greatest(committed_offset, coalesce(first_offset, 0)), 0)
        / coalesce(cast(split_part(slice, '/', 2) as int), 1) as lag_messages
    from known
    where committed_offset is not null and end_offset is not null
),

-- By how much the lag of a group changes at a time; the lag of a group is their running sum.
grows as (
    select
        group_id,
        at_ms,
        lag_messages - coalesce(
            lag(lag_messages) over (partition by group_id, topic, broker, queue_id, slice order by at_ms), 0
        ) as by_messages
    from behind
    union all
    -- A day begins with the lag at the end of the day before.
    select
        begun.group_id,
        days.day_ms as at_ms,
        0 as by_messages
    from (select group_id, min(at_ms) as first_ms from behind group by group_id) as begun
    inner join days on days.day_ms > begun.first_ms
),

summed as (
    select
        group_id,
        at_ms,
        sum(by_messages) as by_messages
    from grows
    group by group_id, at_ms
),

steps as (
    select
        summed.group_id,
        summed.at_ms - summed.at_ms % 86400000 as day_ms,
        sum(summed.by_messages) over (
            partition by summed.group_id order by summed.at_ms rows between unbounded preceding and current row
        ) as lag_messages,
        lead(summed.at_ms, 1, clock.as_of_ms) over (partition by summed.group_id order by summed.at_ms)
        - summed.at_ms as lasts_ms
    from summed
    cross join clock
),

weighed as (
    select
        *,
        sum(lasts_ms) over (partition by group_id, day_ms) as day_lasts_ms,
        sum(lasts_ms) over (
            partition by group_id, day_ms order by lag_messages range between unbounded preceding and current row
        ) as lasts_up_to_ms
    from steps
),

final as (
    select
        group_id,
        cast(timestamp_millis(day_ms) as date) as day,
        max(day_lasts_ms) / 1000 as observed_s,
        cast(min(case when lasts_up_to_ms >= 0.5 * day_lasts_ms then lag_messages end) as bigint) as lag_p50_messages,
        cast(min(case when lasts_up_to_ms >= 0.95 * day_lasts_ms then lag_messages end) as bigint) as lag_p95_messages,
        cast(max(lag_messages) as bigint) as lag_max_messages
    from weighed
    group by group_id, day_ms
)

select * from final order by group_id, day
