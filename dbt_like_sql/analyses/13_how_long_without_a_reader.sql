-- How long did nobody read the queues of a group, with the silence of killed members?
with timeline as (select * from {{ ref('ownership_timeline') }}),

events as (select * from {{ source('ledger', 'events') }}),

clock as (select max(at_ms) as as_of_ms from events),

periods as (
    select
        timeline.*,
        (coalesce({{ millis('timeline.owned_to') }}, clock.as_of_ms) - {{ millis('timeline.owned_from') }})
        / 1000 as lasts_s
    from timeline
    cross join clock
),

final as (
    select
        periods.group_id,
        count(distinct (periods.topic, periods.broker, periods.queue_id, periods.slice)) as queues,
        sum(case when periods.client_id is null then periods.lasts_s else 0 end) as unowned_queue_s,
        -- A killed member owned its queues until its session ended, but did not read them.
        sum(coalesce(periods.silent_s, 0)) as silent_queue_s,
        round(
            100 * sum(case when periods.client_id is null then periods.lasts_s else coalesce(periods.silent_s, 0) end)
            / nullif(sum(periods.lasts_s), 0),
            2
        ) as without_reader_percent
    from periods
    where not (periods.how in ('removed', 'cut') and periods.client_id is null)
    group by periods.group_id
)

select * from final order by without_reader_percent desc, group_id
