-- Every hand-over of a queue.  One row per (shard, seq).
with handovers as (select * from {{ source('ledger', 'handovers') }}),

final as (
    select
        shard,
        {{ era() }} as era,
        seq,
        group_id,
        queue.topic,
        queue.broker,
        queue.queue_id,
        {{ slice_of('queue') }} as slice,
        handovers.from as from_client_id,
        handovers.to as to_client_id,
        epoch,
        how,
        -- In these cases the owner released the queue itself; otherwise it may have processed uncommitted messages.
        {{ is_abrupt() }} as is_abrupt,
        {{ log_time('at_ms') }} as decided_at,
        {{ log_time('revoked_ms') }} as revoked_at,
        {{ log_time('released_ms') }} as released_at,
        {{ log_time('assigned_ms') }} as assigned_at
    from handovers
)

select * from final
