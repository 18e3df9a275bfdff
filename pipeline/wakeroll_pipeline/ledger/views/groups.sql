-- Which groups exist, and what is their state?  One row per group_id.
with known as (
    select group_id from memberships
    union
    select group_id from rebalances
),

members as (
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

ranked as (
    select
        *,
        row_number() over (partition by group_id order by era desc, seq desc) as nth_newest,
        row_number() over (partition by group_id, strategy = '' order by era desc, seq desc) as nth_newest_with_strategy
    from rebalances
),

rebalanced as (select * from ranked where nth_newest = 1),

-- A broadcasting group has no strategy, and a group without existing topics has none either.
strategies as (select * from ranked where nth_newest_with_strategy = 1 and strategy <> ''),

final as (
    select
        known.group_id,
        coalesce(rebalanced.epoch, 0) as epoch,
        coalesce(strategies.strategy, '') as strategy,
        coalesce(members.members, 0) as members,
        coalesce(queues.owned, 0) as owned,
        coalesce(queues.unowned, 0) as unowned,
        coalesce(rebalanced.trigger, '') as last_trigger,
        rebalanced.at_ms as last_rebalance_ms
    from known
    left join rebalanced using (group_id)
    left join members using (group_id)
    left join queues using (group_id)
    left join strategies using (group_id)
)

select * from final
