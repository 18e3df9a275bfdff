-- Why did groups rebalance, and what did it cost?
with cost as (select * from {{ ref('rebalance_cost') }}),

final as (
    select
        group_id,
        epoch,
        trigger,
        strategy,
        clients,
        moved,
        handed_over,
        handover_s,
        longest_pause_s,
        repeats_possible
    from cost
)

select * from final order by group_id, epoch
