-- When did a group rebalance again and again?  One row per (group_id, began_at).
with rebalances as (select * from {{ ref('stg_rebalances') }}),

spaced as (
    select
        *,
        (
            unix_millis(rebalanced_at)
            - unix_millis(lag(rebalanced_at) over (partition by group_id order by era, seq))
        )
        / 1000 as gap_s
    from rebalances
),

numbered as (
    select
        *,
        count_if(gap_s >= {{ var('storm_gap_s') }}) over (partition by group_id order by era, seq) as run
    from spaced
),

final as (
    select
        group_id,
        min(rebalanced_at) as began_at,
        max(rebalanced_at) as ended_at,
        count(*) as rebalances,
        sum(moved) as moved,
        min(epoch) as first_epoch,
        max(epoch) as last_epoch,
        array_join(array_sort(collect_set(trigger)), ', ') as triggers
    from numbered
    group by group_id, run
    having count(*) >= {{ var('storm_rebalances') }}
)

select * from final
