-- When is the lag gone, at the rates of the last ten minutes?
with lag as (select * from {{ source('ledger', 'lag') }}),

offsets as (select * from {{ source('ledger', 'offsets') }}),

end_offsets as (select * from {{ source('ledger', 'end_offsets') }}),

events as (select * from {{ source('ledger', 'events') }}),

window_of as (
    select
        max(at_ms) as as_of_ms,
        greatest(max(at_ms) - 600000, min(at_ms)) as since_ms
    from events
),

-- Per queue: the offset at the beginning of the window, or the first one in it, and the newest one.
consumed as (
    select
        offsets.group_id,
        offsets.topic,
        offsets.broker,
        offsets.queue_id,
        offsets.slice,
        max(offsets.committed_offset)
        - coalesce(
            max(case when offsets.at_ms <= window_of.since_ms then offsets.committed_offset end),
            min(offsets.committed_offset)
        ) as messages
    from offsets
    cross join window_of
    where offsets.mode = 'clustering'
    group by offsets.group_id, offsets.topic, offsets.broker, offsets.queue_id, offsets.slice
),

produced as (
    select
        end_offsets.topic,
        end_offsets.broker,
        end_offsets.queue_id,
        max(end_offsets.end_offset)
        - coalesce(
            max(case when end_offsets.at_ms <= window_of.since_ms then end_offsets.end_offset end),
            min(end_offsets.end_offset)
        ) as messages
    from end_offsets
    cross join window_of
    group by end_offsets.topic, end_offsets.broker, end_offsets.queue_id
),

-- A partition is behind as far as the one of its slices that is furthest behind; each slice has an equal part of it.
partitions as (
    select
        lag.group_id,
        lag.topic,
        lag.broker,
        lag.queue_id,
        max(lag.lag_messages) as lag_messages,
        count(*) - count(lag.lag_messages) as queues_unknown,
        avg(consumed.messages) as messages
    from lag
    left join consumed
        on
            lag.group_id = consumed.group_id
            and lag.topic = consumed.topic
            and lag.broker = consumed.broker
            and lag.queue_id = consumed.queue_id
            and lag.slice is not distinct from consumed.slice
    group by lag.group_id, lag.topic, lag.broker, lag.queue_id, lag.client_id
),

summed as (
    select
        partitions.group_id,
        cast(sum(partitions.lag_messages) as bigint) as lag_messages,
        cast(sum(partitions.queues_unknown) as bigint) as queues_unknown,
        1000 * sum(partitions.messages) / nullif(max(window_of.as_of_ms - window_of.since_ms), 0) as consumed_per_s,
        1000 * sum(produced.messages) / nullif(max(window_of.as_of_ms - window_of.since_ms), 0) as produced_per_s
    from partitions
    cross join window_of
    left join produced using (topic, broker, queue_id)
    group by partitions.group_id
),

final as (
    select
        group_id,
        lag_messages,
        queues_unknown,
        round(consumed_per_s, 1) as consumed_per_s,
        round(produced_per_s, 1) as produced_per_s,
        case
            when lag_messages = 0 then 0
            when consumed_per_s > produced_per_s then round(lag_messages / (consumed_per_s - produced_per_s), 0)
        end as drained_in_s
    from summed
)

select * from final order by lag_messages desc nulls first, group_id
