-- Messages that a handler failed to process, as the clients report.  One row per (shard, seq).
--
-- A row covers failures of one queue with the same attempt and outcome: `messages` of those between the two offsets.
with failed_messages as (select * from {{ source('ledger', 'failed_messages') }}),

final as (
    select
        shard,
        {{ era() }} as era,
        seq,
        group_id,
        client_id,
        queue.topic,
        queue.broker,
        queue.queue_id,
        {{ slice_of('queue') }} as slice,
        first_offset,
        last_offset,
        messages,
        attempt,
        outcome,
        level,
        error,
        {{ log_time('at_ms') }} as reported_at
    from failed_messages
)

select * from final
