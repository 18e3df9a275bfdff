-- Every commit of a client, also one that repeats the known offset; without rejected commits.
--
-- One row per (partition, offset, topic, broker, queue_id, slice).
with events as (select * from {{ ref('stg_events') }}),

rejections as (select * from {{ ref('stg_rejections') }}),

commits as (
    select
        topic as control_topic,
        partition,
        events.offset,
        event_at,
        {{ parsed('value', {
            'group_id': 'string',
            'client_id': 'string',
            'offsets': [
                {
                    'queue': {
                        'topic': 'string', 'broker': 'string', 'queue_id': 'int', 'slices': 'int', 'slice': 'int'
                    },
                    'offset': 'bigint',
                }
            ],
        }) }} as said
    from events
    where type = 'commit'
),

accepted as (
    select commits.*
    from commits
    anti join rejections
        on
            commits.control_topic = rejections.cause_topic
            and commits.partition = rejections.cause_partition
            and commits.offset = rejections.cause_offset
),

each_queue as (
    select
        partition,
        accepted.offset,
        event_at,
        said.group_id,
        said.client_id,
        {{ each_of('said.offsets') }} as committed
    from accepted
),

final as (
    select
        partition,
        each_queue.offset,
        group_id,
        client_id,
        committed.queue.topic,
        coalesce(committed.queue.broker, '') as broker,
        committed.queue.queue_id,
        {{ slice_of('committed.queue') }} as slice,
        committed.offset as committed_offset,
        event_at as committed_at
    from each_queue
)

select * from final
