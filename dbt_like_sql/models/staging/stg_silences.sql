-- Every hand-over of a queue whose owner expired, and how long nobody had read it.  One row per (shard, seq).
with silences as (select * from {{ source('ledger', 'silences') }}),

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
        to_client_id,
        silent_ms / 1000 as silent_s,
        {{ log_time('heard_ms') }} as heard_at,
        {{ log_time('returned_ms') }} as returned_at
    from silences
)

select * from final
