-- How far behind is each group?  One row per (group_id, topic, broker, queue_id, slice, client_id).
--
-- A slice is behind by the messages of its whole partition above its committed offset, so this is an upper bound: some of
-- them are in other slices.  A partition is behind as far as the slice with the lowest offset: do not add slices up.
--
-- client_id is null unless the group broadcasts: then each client has offsets of its own.  "Now" is the newest log time
-- in the tables.  Messages that were deleted unread are no lag.  lag_ms is the age of the oldest report of an end offset
-- that is above the first unread one.  An owned queue without a committed offset has no lag if it has no messages;
-- otherwise its lag is not known: null.
with clock as (select max(at_ms) as as_of_ms from events),

ends as (
    select
        topic,
        broker,
        queue_id,
        -- The newest end offset, not the largest: a topic may be truncated.
        max_by(end_offset, at_ms) as end_offset,
        coalesce(max_by(first_offset, case when first_offset is not null then at_ms end), 0) as first_offset
    from end_offsets
    group by topic, broker, queue_id
),

committed as (
    select
        group_id,
        topic,
        broker,
        queue_id,
        slice,
        case when mode = 'broadcasting' then client_id end as client_id,
        committed_offset,
        at_ms as committed_ms
    from current_offsets
    union all
    select
        current_assignments.group_id,
        current_assignments.topic,
        current_assignments.broker,
        current_assignments.queue_id,
        current_assignments.slice,
        null as client_id,
        null as committed_offset,
        null as committed_ms
    from current_assignments
    left join current_offsets
        on
            current_assignments.group_id = current_offsets.group_id
            and current_assignments.topic = current_offsets.topic
            and current_assignments.broker = current_offsets.broker
            and current_assignments.queue_id = current_offsets.queue_id
            and current_assignments.slice is not distinct from current_offsets.slice
    where current_assignments.client_id is not null and current_offsets.committed_offset is null
),

behind as (
    select
        committed.*,
        ends.end_offset,
        greatest(committed.committed_offset, ends.first_offset) as unread_offset,
        case
            when committed.committed_offset is not null
                then greatest(ends.end_offset - greatest(committed.committed_offset, ends.first_offset), 0)
            when ends.end_offset <= ends.first_offset then 0
        end as lag_messages
    from committed
    inner join ends using (topic, broker, queue_id)
),

waiting as (
    select
        behind.group_id,
        behind.topic,
        behind.broker,
        behind.queue_id,
        behind.slice,
        behind.client_id,
        min(end_offsets.at_ms) as since_ms
    from behind
    inner join end_offsets using (topic, broker, queue_id)
    where behind.lag_messages > 0 and end_offsets.end_offset > behind.unread_offset
    group by behind.group_id, behind.topic, behind.broker, behind.queue_id, behind.slice, behind.client_id
),

final as (
    select
        behind.group_id,
        behind.topic,
        behind.broker,
        behind.queue_id,
        behind.slice,
        behind.client_id,
        behind.committed_offset,
        behind.end_offset,
        behind.lag_messages,
        case when behind.lag_messages is not null then coalesce(clock.as_of_ms - waiting.since_ms, 0) end as lag_ms,
        behind.committed_ms,
        clock.as_of_ms
    from behind
    cross join clock
    left join waiting
        on
            behind.group_id = waiting.group_id
            and behind.topic = waiting.topic
            and behind.broker = waiting.broker
            and behind.queue_id = waiting.queue_id
            and behind.slice is not distinct from waiting.slice
            and coalesce(behind.client_id, '') = coalesce(waiting.client_id, '')
)

select * from final
