-- Every change of a member: joins, leaves, conflicts, descriptions.  One row per (shard, seq).
with memberships as (select * from {{ source('ledger', 'memberships') }}),

final as (
    select
        shard,
        {{ era() }} as era,
        seq,
        group_id,
        client_id,
        instance_id,
        change,
        epoch,
        detail,
        host,
        sdk,
        app_version,
        labels,
        pattern,
        detail like 'duplicate id:%' as is_duplicate_id,
        {{ log_time('at_ms') }} as changed_at
    from memberships
)

select * from final
