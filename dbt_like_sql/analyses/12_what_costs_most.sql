-- Which causes of rebalances cost most?
with cost as (select * from {{ ref('rebalance_cost') }}),

final as (
    select
        group_id,
        trigger,
        count(*) as rebalances,
        cast(sum(moved) as bigint) as moved,
        sum(total_pause_s) as queue_pause_s,
        max(longest_pause_s) as longest_pause_s
    from cost
    group by group_id, trigger
)

select * from final order by queue_pause_s desc, moved desc, group_id, trigger
