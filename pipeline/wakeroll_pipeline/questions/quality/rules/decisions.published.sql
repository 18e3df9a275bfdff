-- a decision is published after its cause and before the end of the log, as far as the clocks of brokers agree (10 min)
with causes as (
    select
        decisions.shard,
        decisions.seq,
        decisions.published_ms,
        events.at_ms as caused_ms
    from decisions
    inner join events
        on
            decisions.cause.topic = events.topic
            and decisions.cause.partition = events.partition
            and decisions.cause.offset = events.offset
),

ends as (select max(at_ms) as last_ms from events)

select
    concat_ws('/', shard, seq) as at,
    concat('published at ', published_ms) as found,
    concat('between ', caused_ms, ', the time of its cause, and ', last_ms, ', that of the newest record') as expected
from causes
cross join ends
where published_ms < caused_ms - 600000 or published_ms > last_ms + 600000
