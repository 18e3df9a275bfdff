-- Every hand-over of a queue whose owner had not released it, and what may be read again.  One row per (shard, seq).
with repeats as (select * from {{ source('ledger', 'repeats') }}),

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
        {{ log_time('until_ms') }} as until_at,
        committed_offset,
        end_offset,
        repeats_possible
    from repeats
)

select * from final
