-- How often does each group rebalance per hour, and why?
with cost as (select * from {{ ref('rebalance_cost') }}),

final as (
    select
        group_id,
        date_trunc('hour', rebalanced_at) as hour,
        trigger,
        count(*) as rebalances,
        cast(sum(moved) as bigint) as moved,
        max(longest_pause_s) as longest_pause_s
    from cost
    group by group_id, date_trunc('hour', rebalanced_at), trigger
)

select * from final order by group_id, hour, trigger
