-- How healthy is each group?  One row per group_id, with the worst status of its queues.
with queue_health as (select * from {{ ref('queue_health') }}),

ranked as (
    select
        *,
        case status
            when 'OK' then 0
            when 'WARN' then 1
            when 'REWIND' then 2
            when 'UNCOMMITTED' then 3
            when 'STALL' then 4
            else 5
        end as badness
    from queue_health
),

-- Of the slices of a partition, the one that is furthest behind counts.
partitions as (
    select
        group_id,
        max(lag_messages) as lag_messages
    from queue_health
    group by group_id, topic, broker, queue_id, offset_owner
),

lags as (
    select
        group_id,
        cast(sum(lag_messages) as bigint) as lag_messages
    from partitions
    group by group_id
),

final as (
    select
        group_id,
        max_by(status, badness) as status,
        count(*) as queues,
        count(case when status = 'WARN' then 1 end) as queues_warn,
        count(case when status = 'REWIND' then 1 end) as queues_rewind,
        count(case when status = 'UNCOMMITTED' then 1 end) as queues_uncommitted,
        count(case when status = 'STALL' then 1 end) as queues_stall,
        count(case when status = 'STOP' then 1 end) as queues_stop,
        max(lags.lag_messages) as lag_messages,
        max(ranked.lag_messages) as max_lag_messages,
        max(as_of) as as_of
    from ranked
    inner join lags using (group_id)
    group by group_id
)

select * from final
