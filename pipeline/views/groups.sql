-- Which groups are there, and how are they?  One row a group_id.
with members as (
    select
        group_id,
        count(*) as members
    from current_members
    group by group_id
),

queues as (
    select
        group_id,
        count(client_id) as owned,
        count(*) - count(client_id) as unowned
    from current_assignments
    where not (how = 'removed' and client_id is null)
    group by group_id
),

strategies as (
    select
        group_id,
        max_by(strategy, epoch) as strategy
    from rebalances
    where strategy <> ''
    group by group_id
),

ranked as (
    select
        *,
        row_number() over (partition by group_id order by epoch desc) as newest
    from rebalances
),

final as (
    select
        ranked.group_id,
        ranked.epoch,
        coalesce(strategies.strategy, '') as strategy,
        coalesce(members.members, 0) as members,
        coalesce(queues.owned, 0) as owned,
        coalesce(queues.unowned, 0) as unowned,
        ranked.trigger as last_trigger,
        ranked.at_ms as last_rebalance_ms
    from ranked
    left join members using (group_id)
    left join queues using (group_id)
    left join strategies using (group_id)
    where ranked.newest = 1
)

select * from final
