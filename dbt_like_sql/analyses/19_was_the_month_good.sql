-- Was the month good? A report of each group, for its service level.
with timeline as (select * from {{ ref('ownership_timeline') }}),

cost as (select * from {{ ref('rebalance_cost') }}),

storms as (select * from {{ ref('storms') }}),

events as (select * from {{ source('ledger', 'events') }}),

clock as (select timestamp_millis(max(at_ms)) as as_of from events),

months as (
    select distinct date_trunc('month', owned_from) as month from timeline
    union
    select distinct date_trunc('month', timestamp_millis(at_ms)) as month from events
),

-- A period of ownership counts in each month that it overlaps.
parts as (
    select
        months.month,
        timeline.group_id,
        timeline.client_id,
        (
            {{ millis("least(coalesce(timeline.owned_to, clock.as_of), months.month + interval 1 month)") }}
            - {{ millis("greatest(timeline.owned_from, months.month)") }}
        )
        / 1000 as lasts_s
    from timeline
    cross join clock
    inner join months
        on
            timeline.owned_from < months.month + interval 1 month
            and coalesce(timeline.owned_to, clock.as_of) >= months.month
    where not (timeline.how in ('removed', 'cut') and timeline.client_id is null)
),

owned as (
    select
        month,
        group_id,
        sum(lasts_s) as queue_s,
        sum(case when client_id is null then lasts_s else 0 end) as unowned_queue_s
    from parts
    group by month, group_id
),

-- A killed member owned its queues until its session ended, but did not read them.
silent as (
    select
        date_trunc('month', owned_to) as month,
        group_id,
        sum(silent_s) as silent_queue_s
    from timeline
    where silent_s > 0
    group by date_trunc('month', owned_to), group_id
),

paused as (
    select
        date_trunc('month', rebalanced_at) as month,
        group_id,
        count(*) as rebalances,
        count(case when trigger = 'expire' then 1 end) as by_expiration,
        cast(sum(moved) as bigint) as moved,
        max(longest_pause_s) as longest_pause_s,
        cast(sum(repeats_possible) as bigint) as repeats_possible
    from cost
    group by date_trunc('month', rebalanced_at), group_id
),

stormy as (
    select
        date_trunc('month', began_at) as month,
        group_id,
        count(*) as storms
    from storms
    group by date_trunc('month', began_at), group_id
),

final as (
    select
        cast(owned.month as date) as month,
        owned.group_id,
        round(
            100 - 100 * (owned.unowned_queue_s + coalesce(silent.silent_queue_s, 0)) / nullif(owned.queue_s, 0), 3
        ) as read_percent,
        coalesce(paused.longest_pause_s, 0) as longest_pause_s,
        coalesce(paused.rebalances, 0) as rebalances,
        coalesce(paused.by_expiration, 0) as by_expiration,
        coalesce(stormy.storms, 0) as storms,
        coalesce(paused.moved, 0) as moved,
        coalesce(paused.repeats_possible, 0) as repeats_possible
    from owned
    left join silent using (month, group_id)
    left join paused using (month, group_id)
    left join stormy using (month, group_id)
)

select * from final order by month, group_id
