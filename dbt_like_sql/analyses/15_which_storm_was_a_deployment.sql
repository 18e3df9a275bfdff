-- Which storm was a rolling restart, and which one a member that flaps?
with storms as (select * from {{ ref('storms') }}),

memberships as (select * from {{ source('ledger', 'memberships') }}),

changes as (
    select
        group_id,
        client_id,
        change,
        log_time,
        lag(change) over (partition by group_id, client_id order by era, seq) as change_before
    from memberships
    where change in ('joined', 'left', 'expired')
),

-- A change leads to a rebalance at once, or after the settle interval.
each_client as (
    select
        storms.group_id,
        storms.began_at,
        changes.client_id,
        count(case when changes.change = 'joined' then 1 end) as joins,
        count(case when changes.change <> 'joined' then 1 end) as ends,
        count(case when changes.change = 'joined' and changes.change_before <> 'joined' then 1 end) as returns
    from storms
    inner join changes
        on
            storms.group_id = changes.group_id
            and changes.log_time between storms.began_at - interval 10 seconds and storms.ended_at
    group by storms.group_id, storms.began_at, changes.client_id
),

each_storm as (
    select
        group_id,
        began_at,
        cast(sum(joins) as bigint) as joins,
        cast(sum(ends) as bigint) as ends,
        count(case when returns > 0 then 1 end) as clients_restarted,
        max(returns) as most_returns,
        max_by(client_id, returns) as most_returned
    from each_client
    group by group_id, began_at
),

final as (
    select
        storms.group_id,
        storms.began_at,
        storms.ended_at,
        storms.rebalances,
        case
            when each_storm.most_returns >= 2 then 'flapping of ' || each_storm.most_returned
            when each_storm.clients_restarted >= 2 then 'rolling restart'
            when each_storm.joins > 0 and each_storm.ends = 0 then 'members added'
            when each_storm.ends > 0 and each_storm.joins = 0 then 'members removed'
            when each_storm.joins > 0 then 'members come and go'
            else storms.triggers
        end as looks_like,
        coalesce(each_storm.clients_restarted, 0) as clients_restarted,
        coalesce(each_storm.joins, 0) as joins,
        coalesce(each_storm.ends, 0) as ends
    from storms
    left join each_storm using (group_id, began_at)
)

select * from final order by group_id, began_at
