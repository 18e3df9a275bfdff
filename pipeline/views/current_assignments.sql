-- Who owns what now?  One row a (group_id, topic, broker, queue_id); client_id null: nobody.
with ranked as (
    select
        *,
        row_number() over (
            partition by group_id, topic, broker, queue_id
            order by from_ms desc, shard desc, seq desc
        ) as newest
    from assignments
),

final as (
    select group_id, topic, broker, queue_id, client_id, epoch, from_ms, previous_client_id, how
    from ranked
    where newest = 1
)

select * from final
