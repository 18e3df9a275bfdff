-- The mart has every rebalance with the number of its hand-overs: an incremental run never looks at old rows again.
--
-- If not, `wakeroll marts --full-refresh` builds the mart again.  Retention may have deleted hand-overs that it counted.
with rebalances as (select * from {{ ref('stg_rebalances') }}),

handovers as (select * from {{ ref('stg_handovers') }}),

costs as (select * from {{ ref('rebalance_cost') }}),

counts as (
    select
        group_id,
        epoch,
        shard,
        count(case when to_client_id is not null then 1 end) as handed_over
    from handovers
    group by group_id, epoch, shard
),

final as (
    select
        rebalances.group_id,
        rebalances.epoch,
        rebalances.shard,
        costs.handed_over,
        counts.handed_over as handed_over_by_decisions
    from rebalances
    left join counts using (group_id, epoch, shard)
    left join costs using (group_id, epoch, shard)
    where
        costs.trigger is null
        or costs.trigger <> rebalances.trigger
        or costs.strategy <> rebalances.strategy
        or costs.moved <> rebalances.moved
        or costs.handed_over < coalesce(counts.handed_over, 0)
)

select * from final
