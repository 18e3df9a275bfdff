-- Every answer to a held pull.  One row per (shard, seq).
with wakes as (select * from {{ source('ledger', 'wakes') }}),

final as (
    select
        shard,
        {{ era() }} as era,
        seq,
        topic,
        broker,
        queue_id,
        group_id,
        client_id,
        request_id,
        reason,
        next_offset,
        held_ms,
        arrival_to_wake_ms,
        {{ log_time('at_ms') }} as woken_at
    from wakes
)

select * from final
