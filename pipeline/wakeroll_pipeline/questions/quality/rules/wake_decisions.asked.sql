-- a wake answers a pull in events
with pulls as (
    select
        {client_id} as client_id,
        {request_id} as request_id
    from events
    where type = 'pull'
),

-- A pull is older than its wake, so it may be deleted already if the archived log does not begin at offset 0.
archived as (
    select
        topic,
        partition,
        max(events.offset) as last_offset
    from events
    group by topic, partition
    having min(events.offset) = 0
)

select
    concat_ws('/', wakes.shard, wakes.seq) as at,
    concat('no pull ', wakes.request_id, ' of ', wakes.client_id) as found,
    'an archived pull' as expected
from wake_decisions as wakes
inner join archived on wakes.cause.topic = archived.topic and wakes.cause.partition = archived.partition
anti join pulls on wakes.client_id = pulls.client_id and wakes.request_id = pulls.request_id
anti join lost_rows
    on
        lost_rows.table_name = 'events'
        and archived.topic = lost_rows.topic
        and archived.partition = lost_rows.partition
        and wakes.cause.offset >= lost_rows.first_lost
where wakes.cause.offset <= archived.last_offset
