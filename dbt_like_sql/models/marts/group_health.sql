-- How healthy is each group?  One row per group_id, with the worst status of its queues.
with queue_health as (select * from {{ ref('queue_health') }}),

ranked as (
    select
        *,
        case status when 'OK' then 0 when 'WARN' then 1 when 'REWIND' then 2 when 'STALL' then 3 else 4 end as badness
    from queue_health
),

final as (
    select
        group_id,
        max_by(status, badness) as status,
        count(*) as queues,
        count_if(status = 'WARN') as queues_warn,
        count_if(status = 'REWIND') as queues_rewind,
        count_if(status = 'STALL') as queues_stall,
        count_if(status = 'STOP') as queues_stop,
        sum(lag_messages) as lag_messages,
        max(lag_messages) as max_lag_messages,
        max(as_of) as as_of
    from ranked
    group by group_id
)

select * from final
