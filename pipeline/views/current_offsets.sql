-- How far is each queue consumed?  One row a (group_id, topic, broker, queue_id).
with ranked as (
    select
        *,
        row_number() over (
            partition by group_id, topic, broker, queue_id
            order by at_ms desc, shard desc, seq desc
        ) as newest
    from offsets
),

final as (
    select group_id, topic, broker, queue_id, client_id, committed_offset, epoch, at_ms, reset_by
    from ranked
    where newest = 1
)

select * from final
