-- Which deployments were there: rolling restarts, members that flap, and members that were added or removed?
--
-- Changes of the members of a group belong together if less than two minutes lie between them.
with changes as (select * from {{ source('ledger', 'member_changes') }}),

rebalance_cost as (select * from {{ ref('rebalance_cost') }}),

spaced as (
    select
        *,
        at_ms - lag(at_ms) over (partition by group_id order by era, seq) as gap_ms
    from changes
),

numbered as (
    select
        *,
        is_return and app_version = version_before as is_same_again,
        count(case when gap_ms >= 120000 then 1 end) over (partition by group_id order by era, seq) as number
    from spaced
),

each_client as (
    select
        group_id,
        number,
        client_id,
        count(case when is_return then 1 end) as returns,
        count(case when is_same_again then 1 end) as same_returns
    from numbered
    group by group_id, number, client_id
),

returned as (
    select
        group_id,
        number,
        count(case when returns > 0 then 1 end) as restarted,
        max(same_returns) as most_returns,
        max_by(client_id, (same_returns, client_id)) as client_id
    from each_client
    group by group_id, number
),

deployments as (
    select
        group_id,
        number,
        min(at_ms) as began_ms,
        max(at_ms) as ended_ms,
        count(case when is_join then 1 end) as joins,
        count(case when not is_join then 1 end) as ends,
        count(distinct client_id) as members,
        count(distinct host) as hosts,
        min(host) as first_host,
        max(host) as last_host,
        min_by(app_version, case when not is_join then (era, seq) end) as from_version,
        max_by(app_version, case when is_join then (era, seq) end) as to_version,
        min_by(client_id, case when is_join then (era, seq) end) as first_member
    from numbered
    group by group_id, number
),

-- A change leads to a rebalance at once, or after the settle interval.
costs as (
    select
        deployments.group_id,
        deployments.number,
        count(*) as rebalances,
        max(rebalance_cost.longest_pause_s) as longest_pause_s,
        cast(sum(rebalance_cost.repeats_possible) as bigint) as repeats_possible
    from deployments
    inner join rebalance_cost
        on
            deployments.group_id = rebalance_cost.group_id
            and rebalance_cost.rebalanced_at between timestamp_millis(deployments.began_ms)
            and timestamp_millis(deployments.ended_ms + 10000)
    group by deployments.group_id, deployments.number
),

final as (
    select
        deployments.group_id,
        timestamp_millis(deployments.began_ms) as began_at,
        timestamp_millis(deployments.ended_ms) as ended_at,
        case
            when returned.most_returns >= 2 then 'flapping of ' || returned.client_id
            when deployments.ends = 0 then 'members added'
            when deployments.joins = 0 then 'members removed'
            when deployments.joins = 1 and deployments.ends = 1 then 'restart of one member'
            when returned.restarted >= 2 then 'rolling restart'
            -- Members with generated names have new ones after a restart.
            when deployments.from_version <> deployments.to_version then 'rolling restart'
            when deployments.joins = deployments.ends then 'rolling restart'
            else 'members come and go'
        end as looks_like,
        deployments.from_version,
        deployments.to_version,
        deployments.first_member,
        deployments.members,
        deployments.joins,
        deployments.ends,
        deployments.hosts,
        deployments.first_host,
        deployments.last_host,
        coalesce(costs.rebalances, 0) as rebalances,
        coalesce(costs.longest_pause_s, 0) as longest_pause_s,
        coalesce(costs.repeats_possible, 0) as repeats_possible
    from deployments
    inner join returned using (group_id, number)
    left join costs using (group_id, number)
)

select * from final order by group_id, began_at
