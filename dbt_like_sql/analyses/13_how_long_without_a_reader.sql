-- How long did nobody read the queues of a group, with the silence of killed members?
with timeline as (select * from {{ ref('ownership_timeline') }}),

memberships as (select * from {{ source('ledger', 'memberships') }}),

events as (select * from {{ source('ledger', 'events') }}),

clock as (select max(at_ms) as as_of_ms from events),

periods as (
    select
        timeline.*,
        (coalesce({{ millis('timeline.owned_to') }}, clock.as_of_ms) - {{ millis('timeline.owned_from') }})
        / 1000 as lasts_s,
        lag(timeline.client_id) over (
            partition by timeline.group_id, timeline.topic, timeline.broker, timeline.queue_id
            order by timeline.era, timeline.seq
        ) as lost_by
    from timeline
    cross join clock
),

-- A killed member owned its queues until its session ended, but did not read them.
silences as (
    select
        periods.shard,
        periods.seq,
        max_by(
            cast(nullif(regexp_extract(memberships.detail, 'no heartbeat for ([0-9]+) ms', 1), '') as bigint),
            (memberships.era, memberships.seq)
        )
        / 1000 as silent_s
    from periods
    inner join memberships
        on
            periods.shard = memberships.shard
            and periods.group_id = memberships.group_id
            and periods.lost_by = memberships.client_id
            and memberships.seq < periods.seq
    where periods.how = 'expired' and memberships.change = 'expired'
    group by periods.shard, periods.seq
),

final as (
    select
        periods.group_id,
        count(distinct (periods.topic, periods.broker, periods.queue_id)) as queues,
        sum(case when periods.client_id is null then periods.lasts_s else 0 end) as unowned_queue_s,
        sum(coalesce(silences.silent_s, 0)) as silent_queue_s,
        round(
            100 * sum(case when periods.client_id is null then periods.lasts_s else coalesce(silences.silent_s, 0) end)
            / nullif(sum(periods.lasts_s), 0),
            2
        ) as without_reader_percent
    from periods
    left join silences using (shard, seq)
    where not (periods.how = 'removed' and periods.client_id is null)
    group by periods.group_id
)

select * from final order by without_reader_percent desc, group_id
