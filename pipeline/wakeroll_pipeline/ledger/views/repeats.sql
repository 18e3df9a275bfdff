-- How many messages may the new owner of a queue read again?  One row per hand-over that the old owner did not cause.
--
-- The number is a bound: an owner that was killed read nothing later than one interval of heartbeats after its last one,
-- and one that lives read until its queue was handed over.  Reports of end offsets show what there was to read.  The
-- observer reports growth within five seconds, so a report in the ten seconds after that time counts.
with moved as (
    select
        shard,
        era,
        seq,
        at_ms,
        group_id,
        queue.topic as topic,
        queue.broker as broker,
        queue.queue_id as queue_id,
        {slice} as slice,
        handovers.from as client_id,
        handovers.to as to_client_id,
        epoch,
        how
    from handovers
    where
        {is_abrupt}
        and handovers.from is not null
        and handovers.to is not null
),

intervals as (
    select
        era,
        seq,
        group_id,
        client_id,
        cast(nullif(regexp_extract(json, '"heartbeat_ms":([0-9]{1,9})', 1), '') as bigint) as heartbeat_ms
    from decisions
    where kind = 'assignment'
),

demanded as (
    select
        moved.shard,
        moved.seq,
        max_by(intervals.heartbeat_ms, (intervals.era, intervals.seq)) as heartbeat_ms
    from moved
    inner join intervals
        on
            moved.group_id = intervals.group_id
            and moved.client_id = intervals.client_id
            and (intervals.era, intervals.seq) < (moved.era, moved.seq)
    group by moved.shard, moved.seq
),

lived as (
    select
        moved.*,
        case
            when moved.how = 'expired' and silences.returned_ms is null
                then coalesce(silences.heard_ms + demanded.heartbeat_ms, moved.at_ms)
            -- The old owner of an eager hand-over learns of it with the answer to its next heartbeat at the latest.
            when moved.how = 'eager' then moved.at_ms + coalesce(demanded.heartbeat_ms, 0)
            else moved.at_ms
        end as until_ms
    from moved
    left join silences using (shard, seq)
    left join demanded using (shard, seq)
),

-- The commits of these groups and their hand-overs, in one order: so the work does not grow with their product.
advances as (
    select
        shard,
        era,
        seq,
        group_id,
        topic,
        broker,
        queue_id,
        slice,
        committed_offset
    from offsets
    where group_id in (select moved.group_id from moved)
    union all
    select
        shard,
        era,
        seq,
        group_id,
        topic,
        broker,
        queue_id,
        slice,
        null as committed_offset
    from moved
),

committed as (
    select
        shard,
        seq,
        max_by(committed_offset, case when committed_offset is not null then (era, seq) end) over (
            partition by group_id, topic, broker, queue_id, slice
            order by era, seq
            rows between unbounded preceding and current row
        ) as committed_offset
    from advances
),

-- A hand-over stands before the reports of its last moment.
reports as (
    select
        null as shard,
        null as seq,
        topic,
        broker,
        queue_id,
        at_ms as until_ms,
        1 as place,
        end_offset
    from end_offsets
    union all
    select
        shard,
        seq,
        topic,
        broker,
        queue_id,
        until_ms,
        0 as place,
        null as end_offset
    from lived
),

around as (
    select
        shard,
        seq,
        until_ms,
        max_by(end_offset, case when place = 1 then until_ms end) over (
            partition by topic, broker, queue_id
            order by until_ms, place
            rows between unbounded preceding and current row
        ) as end_before,
        min_by(end_offset, case when place = 1 then until_ms end) over (
            partition by topic, broker, queue_id
            order by until_ms, place
            rows between current row and unbounded following
        ) as end_after,
        min(case when place = 1 then until_ms end) over (
            partition by topic, broker, queue_id
            order by until_ms, place
            rows between current row and unbounded following
        ) as after_ms
    from reports
),

readable as (
    select
        shard,
        seq,
        case when after_ms <= until_ms + 10000 then end_after else end_before end as end_offset
    from around
    where seq is not null
),

final as (
    select
        lived.group_id,
        lived.topic,
        lived.broker,
        lived.queue_id,
        lived.slice,
        lived.client_id,
        lived.to_client_id,
        lived.epoch,
        lived.how,
        lived.until_ms,
        committed.committed_offset,
        readable.end_offset,
        greatest(readable.end_offset - committed.committed_offset, 0) as repeats_possible,
        lived.at_ms,
        lived.shard,
        lived.era,
        lived.seq
    from lived
    inner join committed using (shard, seq)
    inner join readable using (shard, seq)
)

select * from final
