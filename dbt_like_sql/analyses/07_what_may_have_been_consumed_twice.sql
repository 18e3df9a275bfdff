-- Which rebalances may have let messages be consumed twice?
with cost as (select * from {{ ref('rebalance_cost') }}),

final as (
    select
        group_id,
        epoch,
        trigger,
        handed_over_abruptly,
        repeats_possible
    from cost
    where handed_over_abruptly > 0
)

select * from final order by repeats_possible desc, group_id, epoch
