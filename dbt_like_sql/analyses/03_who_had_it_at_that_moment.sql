-- Who had which queue of orders 40 seconds after the first event?
with timeline as (select * from {{ ref('ownership_timeline') }}),

events as (select * from {{ source('ledger', 'events') }}),

moment as (select {{ log_time('min(at_ms)') }} + interval 40 seconds as at from events),

final as (
    select
        moment.at,
        timeline.group_id,
        timeline.queue_id,
        timeline.slice,
        coalesce(timeline.client_id, 'nobody') as owner,
        timeline.owned_from
    from timeline
    inner join moment on timeline.owned_from <= moment.at and coalesce(timeline.owned_to > moment.at, true)
    where timeline.topic = 'orders'
)

select * from final order by group_id, queue_id, slice
