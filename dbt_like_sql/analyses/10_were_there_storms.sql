-- When did a group rebalance repeatedly?
with storms as (select * from {{ ref('storms') }}),

final as (
    select
        group_id,
        began_at,
        ended_at,
        rebalances,
        moved,
        triggers
    from storms
)

select * from final order by group_id, began_at
