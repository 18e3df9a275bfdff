-- When did a group rebalance again and again?  One row per (group_id, began_at).
with rebalances as (select * from {{ ref('stg_rebalances') }}),

spaced as (
    select
        *,
        (
            {{ millis('rebalanced_at') }}
            - {{ millis('lag(rebalanced_at) over (partition by group_id order by era, seq)') }}
        )
        / 1000 as gap_s
    from rebalances
),

numbered as (
    select
        *,
        count(case when gap_s >= {{ var('storm_gap_s') }} then 1 end) over (partition by group_id order by era, seq) as run
    from spaced
),

final as (
    select
        group_id,
        min(rebalanced_at) as began_at,
        max(rebalanced_at) as ended_at,
        count(*) as rebalances,
        cast(sum(moved) as bigint) as moved,
        min(epoch) as first_epoch,
        max(epoch) as last_epoch,
        {{ joined(sorted_values('trigger'), ', ') }} as triggers
    from numbered
    group by group_id, run
    having count(*) >= {{ var('storm_rebalances') }}
)

select * from final
