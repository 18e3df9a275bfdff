-- Which pulls were held, for how long, and which event ended the wait?  One row per pull.
--
-- at_ms is the log time of the event that ended the wait.  The pull itself causes the wake if it is answered at once.
with causes as (
    select
        topic,
        partition,
        events.offset,
        type
    from events
)

select
    wake_decisions.queue.topic,
    wake_decisions.queue.broker,
    wake_decisions.queue.queue_id,
    wake_decisions.group_id,
    wake_decisions.client_id,
    wake_decisions.request_id,
    wake_decisions.reason,
    wake_decisions.next_offset,
    wake_decisions.held_ms,
    wake_decisions.at_ms,
    wake_decisions.published_ms,
    case when causes.type = 'arrival' then wake_decisions.published_ms - wake_decisions.at_ms end as arrival_to_wake_ms,
    wake_decisions.shard,
    wake_decisions.era,
    wake_decisions.seq
from wake_decisions
left join causes
    on
        wake_decisions.cause.topic = causes.topic
        and wake_decisions.cause.partition = causes.partition
        and wake_decisions.cause.offset = causes.offset
