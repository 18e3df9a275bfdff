-- Every new target of a group.  One row per (shard, seq); (group_id, epoch) is unique until the group is forgotten.
with rebalances as (select * from {{ source('ledger', 'rebalances') }}),

final as (
    select
        shard,
        {{ era() }} as era,
        seq,
        group_id,
        epoch,
        trigger,
        strategy,
        clients,
        queues,
        moved,
        coalesce(unassigned_count, {{ length_of('unassigned') }}) as unassigned,
        spread,
        coalesce({{ joined('notes', '; ') }}, '') as notes,
        {{ log_time('at_ms') }} as rebalanced_at
    from rebalances
)

select * from final
