-- Which storm was a rolling restart, of which version, and which one a member that flaps?
with storms as (select * from {{ ref('storms') }}),

changes as (select * from {{ source('ledger', 'member_changes') }}),

-- A change leads to a rebalance at once, or after the settle interval.
concerned as (
    select
        storms.began_at,
        changes.*
    from storms
    inner join changes
        on
            storms.group_id = changes.group_id
            and changes.log_time between storms.began_at - interval 10 seconds and storms.ended_at
),

each_client as (
    select
        group_id,
        began_at,
        client_id,
        count(case when is_return then 1 end) as returns,
        count(case when is_return and app_version = version_before then 1 end) as same_returns
    from concerned
    group by group_id, began_at, client_id
),

returned as (
    select
        group_id,
        began_at,
        count(case when returns > 0 then 1 end) as clients_restarted,
        max(same_returns) as most_returns,
        max_by(client_id, (same_returns, client_id)) as most_returned
    from each_client
    group by group_id, began_at
),

each_storm as (
    select
        group_id,
        began_at,
        count(case when is_join then 1 end) as joins,
        count(case when not is_join then 1 end) as ends,
        count(distinct host) as hosts,
        min_by(app_version, case when not is_join then (era, seq) end) as from_version,
        max_by(app_version, case when is_join then (era, seq) end) as to_version,
        min_by(client_id, case when is_join then (era, seq) end) as first_member
    from concerned
    group by group_id, began_at
),

final as (
    select
        storms.group_id,
        storms.began_at,
        storms.ended_at,
        storms.rebalances,
        case
            when returned.most_returns >= 2 then 'flapping of ' || returned.most_returned
            when returned.clients_restarted >= 2 then 'rolling restart'
            when each_storm.joins > 0 and each_storm.ends = 0 then 'members added'
            when each_storm.ends > 0 and each_storm.joins = 0 then 'members removed'
            -- Members with generated names have new ones after a restart.
            when each_storm.from_version <> each_storm.to_version then 'rolling restart'
            when each_storm.joins >= 2 and each_storm.joins = each_storm.ends then 'rolling restart'
            when each_storm.joins > 0 then 'members come and go'
            else storms.triggers
        end as looks_like,
        each_storm.from_version,
        each_storm.to_version,
        each_storm.first_member,
        coalesce(each_storm.hosts, 0) as hosts,
        coalesce(returned.clients_restarted, 0) as clients_restarted,
        coalesce(each_storm.joins, 0) as joins,
        coalesce(each_storm.ends, 0) as ends
    from storms
    left join each_storm using (group_id, began_at)
    left join returned using (group_id, began_at)
)

select * from final order by group_id, began_at
