-- How far behind is each group?  One row per (group_id, topic, broker, queue_id, slice, offset_owner).
--
-- A slice is behind by the messages of its whole partition above its committed offset.  A partition is behind as far as
-- its slice with the lowest offset: take the largest lag of its slices, not the sum.
--
-- "Now" is the newest log time in the tables, so an older copy of the tables yields the values of its time.  Messages that
-- were deleted unread are no lag.  An owned queue without a committed offset has no lag if it has no messages; otherwise
-- its lag is not known: null.
with lag as (select * from {{ ref('stg_lag') }}),

offsets as (select * from {{ ref('stg_offsets') }}),

queues as (select * from {{ ref('stg_queues') }}),

-- Rates of consumption and production, over the period that the recorded offsets cover.
consumed as (
    select
        group_id,
        topic,
        broker,
        queue_id,
        slice,
        offset_owner,
        min(committed_at) as first_at,
        (max_by(committed_offset, (era, seq)) - min_by(committed_offset, (era, seq)))
        / nullif(({{ millis('max(committed_at)') }} - {{ millis('min(committed_at)') }}) / 1000, 0) as consumed_per_s
    from offsets
    group by group_id, topic, broker, queue_id, slice, offset_owner
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
        lag.group_id,
        lag.topic,
        lag.broker,
        lag.queue_id,
        lag.slice,
        lag.offset_owner,
        lag.committed_offset,
        lag.end_offset,
        lag.lag_messages,
        lag.lag_s,
        consumed.consumed_per_s,
        coalesce(produced.produced_per_s, 0) as produced_per_s,
        case
            when lag.lag_messages = 0 then 0
            when consumed.consumed_per_s > coalesce(produced.produced_per_s, 0)
                then lag.lag_messages / (consumed.consumed_per_s - coalesce(produced.produced_per_s, 0))
        end as catch_up_s,
        lag.committed_at,
        lag.as_of
    from lag
    left join consumed on {{ same_queue('lag', 'consumed') }} and lag.offset_owner = consumed.offset_owner
    left join produced
        on lag.topic = produced.topic and lag.broker = produced.broker and lag.queue_id = produced.queue_id
)

select * from final
