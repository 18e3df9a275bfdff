-- Which first and end offsets did the observer and the producers report?  One row per (topic, broker, queue_id, seen_at).
--
-- A route is published to every partition; its copies make one row.
with events as (select * from {{ ref('stg_events') }}),

routes as (
    select
        event_at,
        {{ parsed('value', {
            'queues': [{
                'topic': 'string',
                'broker': 'string',
                'queue_id': 'int',
                'max_offset': 'bigint',
                'min_offset': 'bigint',
            }],
        }) }} as said
    from events
    where type = 'route'
),

routed as (
    select
        event_at,
        {{ each_of('said.queues') }} as queue
    from routes
),

arrivals as (
    select
        event_at,
        {{ parsed('value', {
            'queue': {'topic': 'string', 'broker': 'string', 'queue_id': 'int'},
            'next_offset': 'bigint',
        }) }} as said
    from events
    where type = 'arrival'
),

seen as (
    select
        queue.topic,
        queue.broker,
        queue.queue_id,
        -- An offset of zero is omitted in the JSON.
        coalesce(queue.max_offset, 0) as end_offset,
        coalesce(queue.min_offset, 0) as first_offset,
        event_at as seen_at
    from routed
    union all
    select
        said.queue.topic,
        said.queue.broker,
        said.queue.queue_id,
        said.next_offset as end_offset,
        cast(null as bigint) as first_offset,
        event_at as seen_at
    from arrivals
),

final as (
    select
        topic,
        coalesce(broker, '') as broker,
        queue_id,
        max(end_offset) as end_offset,
        max(first_offset) as first_offset,
        seen_at
    from seen
    -- A record that is no valid event names no queue.
    where topic is not null and queue_id is not null and end_offset >= 0
    group by topic, broker, queue_id, seen_at
)

select * from final
