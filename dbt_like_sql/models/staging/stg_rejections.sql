-- Every event that was rejected.  One row per (shard, seq).
with rejections as (select * from {{ source('ledger', 'rejections') }}),

final as (
    select
        shard,
        {{ era() }} as era,
        seq,
        rule,
        detail,
        group_id,
        client_id,
        cause.topic as cause_topic,
        cause.partition as cause_partition,
        cause.offset as cause_offset,
        {{ log_time('at_ms') }} as rejected_at
    from rejections
)

select * from final
