-- Every instance that was fenced from its group.  One row per (shard, seq).
--
-- Each heartbeat of an ended instance is fenced again.
with fencings as (select * from {{ source('ledger', 'fencings') }}),

final as (
    select
        shard,
        {{ era() }} as era,
        seq,
        group_id,
        client_id,
        instance_id,
        reason,
        fencings.by as by_instance_id,
        {{ log_time('at_ms') }} as fenced_at
    from fencings
)

select * from final
