-- Every decision, without its content.  One row per (shard, seq).
with decisions as (select * from {{ source('ledger', 'decisions') }}),

final as (
    select
        shard,
        {{ era() }} as era,
        seq,
        kind,
        group_id,
        client_id,
        cause.topic as cause_topic,
        cause.partition as cause_partition,
        cause.offset as cause_offset,
        {{ log_time('at_ms') }} as decided_at,
        {{ log_time('published_ms') }} as published_at
    from decisions
)

select * from final
