-- Every change of a queue's owner.  One row per (shard, seq).
with assignments as (select * from {{ source('ledger', 'assignments') }}),

final as (
    select
        shard,
        {{ era() }} as era,
        seq,
        group_id,
        topic,
        broker,
        queue_id,
        slice,
        client_id,
        previous_client_id,
        epoch,
        how,
        {{ log_time('from_ms') }} as owned_from
    from assignments
)

select * from final
