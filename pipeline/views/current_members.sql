-- Who is in which group now?  One row a (group_id, client_id).
with ranked as (
    select
        *,
        row_number() over (partition by group_id, client_id order by at_ms desc, shard desc, seq desc) as newest
    from memberships
    -- The others say how a member that is here differs from the oldest one.
    where client_id <> '' and change not in ('conflict', 'agreed')
),

entered as (
    select
        group_id,
        client_id,
        instance_id,
        max(at_ms) as joined_ms
    from memberships
    where change in ('joined', 'replaced')
    group by group_id, client_id, instance_id
),

owned as (
    select
        group_id,
        client_id,
        count(*) as queues
    from current_assignments
    where client_id is not null
    group by group_id, client_id
),

final as (
    select
        ranked.group_id,
        ranked.client_id,
        ranked.instance_id,
        entered.joined_ms,
        coalesce(owned.queues, 0) as queues
    from ranked
    inner join entered using (group_id, client_id, instance_id)
    left join owned using (group_id, client_id)
    where ranked.newest = 1 and ranked.change in ('joined', 'replaced', 'resubscribed')
)

select * from final
