-- Every pull.  One row per (topic, partition, offset).
with events as (select * from {{ ref('stg_events') }}),

pulls as (
    select
        topic as control_topic,
        partition,
        events.offset,
        event_at,
        {{ parsed('value', {
            'request_id': 'string',
            'group_id': 'string',
            'client_id': 'string',
            'instance_id': 'string',
            'queue': {'topic': 'string', 'broker': 'string', 'queue_id': 'int'},
            'from_offset': 'bigint',
            'timeout_ms': 'bigint',
        }) }} as said
    from events
    where type = 'pull'
),

final as (
    select
        control_topic,
        partition,
        pulls.offset,
        said.group_id,
        said.client_id,
        said.instance_id,
        said.request_id,
        try_cast(split_part(said.request_id, ':', -1) as bigint) as request_number,
        said.queue.topic,
        coalesce(said.queue.broker, '') as broker,
        said.queue.queue_id,
        said.from_offset,
        coalesce(said.timeout_ms, 20000) as timeout_ms,
        event_at as asked_at
    from pulls
)

select * from final
