-- Who waited for messages, for how long, and what ended it?  One row a pull.
--
-- at_ms is the log time of what woke it.  A pull that was answered at once was woken by no arrival: its cause is itself,
-- and it was not held at all.
select
    queue.topic,
    queue.broker,
    queue.queue_id,
    group_id,
    client_id,
    request_id,
    reason,
    next_offset,
    held_ms,
    at_ms,
    published_ms,
    case when reason = 'arrival' and held_ms > 0 then published_ms - at_ms end as arrival_to_wake_ms,
    shard,
    seq
from wake_decisions
