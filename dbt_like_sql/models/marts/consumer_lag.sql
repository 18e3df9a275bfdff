-- How far behind is each group?  One row per (group_id, topic, broker, queue_id, offset_owner).
--
-- "Now" is the newest log time in the tables, so an older copy of the tables yields the values of its time.  Messages that
-- were deleted unread are no lag.  An owned queue without a committed offset has no lag if it has no messages; otherwise
-- its lag is not known: null.
with current_offsets as (select * from {{ ref('stg_current_offsets') }}),

offsets as (select * from {{ ref('stg_offsets') }}),

queues as (select * from {{ ref('stg_queues') }}),

events as (select * from {{ ref('stg_events') }}),

ownership as (select * from {{ ref('current_ownership') }}),

clock as (select max(event_at) as as_of from events),

ends as (
    select
        topic,
        broker,
        queue_id,
        -- The newest end offset, not the largest: a topic may be truncated.
        max_by(end_offset, seen_at) as end_offset,
        coalesce(max_by(first_offset, case when first_offset is not null then seen_at end), 0) as first_offset
    from queues
    group by topic, broker, queue_id
),

followed as (
    select group_id, topic, broker, queue_id, offset_owner, committed_offset, committed_at
    from current_offsets
    union all
    select
        ownership.group_id,
        ownership.topic,
        ownership.broker,
        ownership.queue_id,
        '' as offset_owner,
        null as committed_offset,
        null as committed_at
    from ownership
    left join current_offsets using (group_id, topic, broker, queue_id)
    where ownership.client_id is not null and current_offsets.committed_offset is null
),

behind as (
    select
        followed.*,
        ends.end_offset,
        greatest(followed.committed_offset, ends.first_offset) as unread_offset,
        case
            when followed.committed_offset is not null
                then greatest(ends.end_offset - greatest(followed.committed_offset, ends.first_offset), 0)
            when ends.end_offset <= ends.first_offset then 0
        end as lag_messages
    from followed
    inner join ends using (topic, broker, queue_id)
),

-- Time of the oldest message that is not consumed: the time of the first report whose end offset includes it.
waiting as (
    select
        behind.group_id,
        behind.topic,
        behind.broker,
        behind.queue_id,
        behind.offset_owner,
        min(queues.seen_at) as waiting_since
    from behind
    inner join queues using (topic, broker, queue_id)
    where behind.lag_messages > 0 and queues.end_offset > behind.unread_offset
    group by behind.group_id, behind.topic, behind.broker, behind.queue_id, behind.offset_owner
),

-- Rates of consumption and production, over the period that the recorded offsets cover.
consumed as (
    select
        group_id,
        topic,
        broker,
        queue_id,
        offset_owner,
        min(committed_at) as first_at,
        (max_by(committed_offset, (era, seq)) - min_by(committed_offset, (era, seq)))
        / nullif(({{ millis('max(committed_at)') }} - {{ millis('min(committed_at)') }}) / 1000, 0) as consumed_per_s
    from offsets
    group by group_id, topic, broker, queue_id, offset_owner
),

produced as (
    select
        topic,
        broker,
        queue_id,
        (max_by(end_offset, seen_at) - min_by(end_offset, seen_at))
        / nullif(({{ millis('max(seen_at)') }} - {{ millis('min(seen_at)') }}) / 1000, 0) as produced_per_s
    from queues
    group by topic, broker, queue_id
),

final as (
    select
        behind.group_id,
        behind.topic,
        behind.broker,
        behind.queue_id,
        behind.offset_owner,
        behind.committed_offset,
        behind.end_offset,
        behind.lag_messages,
        case
            when behind.lag_messages is not null
                then coalesce(({{ millis('clock.as_of') }} - {{ millis('waiting.waiting_since') }}) / 1000, 0)
        end as lag_s,
        consumed.consumed_per_s,
        coalesce(produced.produced_per_s, 0) as produced_per_s,
        case
            when behind.lag_messages = 0 then 0
            when consumed.consumed_per_s > coalesce(produced.produced_per_s, 0)
                then behind.lag_messages / (consumed.consumed_per_s - coalesce(produced.produced_per_s, 0))
        end as catch_up_s,
        behind.committed_at,
        clock.as_of
    from behind
    cross join clock
    left join waiting using (group_id, topic, broker, queue_id, offset_owner)
    left join consumed using (group_id, topic, broker, queue_id, offset_owner)
    left join produced using (topic, broker, queue_id)
)

select * from final
