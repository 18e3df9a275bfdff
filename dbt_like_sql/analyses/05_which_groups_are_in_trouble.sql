-- Which groups are in trouble?
with health as (select * from {{ ref('group_health') }}),

final as (
    select
        group_id,
        status,
        queues,
        queues_warn,
        queues_rewind,
        queues_uncommitted,
        queues_stall,
        queues_stop,
        lag_messages
    from health
)

select * from final order by group_id
