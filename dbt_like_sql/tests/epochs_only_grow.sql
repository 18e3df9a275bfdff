-- Invariant 3: the epoch of a group never falls, and every new target has a new one.
with rebalances as (select * from {{ ref('stg_rebalances') }}),

memberships as (select * from {{ ref('stg_memberships') }}),

handovers as (select * from {{ ref('stg_handovers') }}),

said as (
    select group_id, era, seq, epoch, true as is_new from rebalances
    union all
    select group_id, era, seq, epoch, false as is_new from memberships
    union all
    select group_id, era, seq, epoch, false as is_new from handovers
),

beside_the_highest as (
    select
        *,
        max(epoch) over (
            partition by group_id
            order by era, seq
            rows between unbounded preceding and 1 preceding
        ) as highest_before
    from said
),

final as (
    select *
    from beside_the_highest
    where epoch < highest_before or (is_new and epoch = highest_before)
)

select * from final
