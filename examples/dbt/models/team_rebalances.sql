-- What did the rebalances of each team's groups cost?  One row per team: the first word of a group's name.
with rebalances as (select * from {{ ref('wakeroll', 'rebalance_cost') }}),

final as (
    select
        split_part(group_id, '-', 1) as team,
        count(*) as rebalances,
        cast(sum(moved) as bigint) as moved,
        cast(sum(repeats_possible) as bigint) as repeats_possible,
        sum(total_pause_s) as total_pause_s
    from rebalances
    group by 1
)

select * from final
