-- How many messages were consumed twice at the hand-overs of killed members, at most?
--
-- A killed member has read nothing that came later than one heartbeat interval after its last heartbeat.
with handovers as (select * from {{ source('ledger', 'handovers') }}),

memberships as (select * from {{ source('ledger', 'memberships') }}),

decisions as (select * from {{ source('ledger', 'decisions') }}),

offsets as (select * from {{ source('ledger', 'offsets') }}),

end_offsets as (select * from {{ source('ledger', 'end_offsets') }}),

lost as (
    select
        shard,
        era,
        seq,
        at_ms,
        group_id,
        handovers.from as client_id,
        handovers.to as to_client_id,
        queue.topic,
        queue.broker,
        queue.queue_id
    from handovers
    where how = 'expired' and handovers.from is not null
),

silences as (
    select
        lost.shard,
        lost.seq,
        max_by(
            cast(nullif(regexp_extract(memberships.detail, 'no heartbeat for ([0-9]+) ms', 1), '') as bigint),
            (lost.era, memberships.seq)
        ) as silent_ms
    from lost
    inner join memberships using (shard, group_id, client_id)
    where memberships.change = 'expired' and memberships.seq < lost.seq
    group by lost.shard, lost.seq
),

intervals as (
    select
        lost.shard,
        lost.seq,
        max_by(
            cast(regexp_extract(decisions.json, '"heartbeat_ms":([0-9]+)', 1) as bigint), (lost.era, decisions.seq)
        ) as heartbeat_ms
    from lost
    inner join decisions using (shard, group_id, client_id)
    where decisions.kind = 'assignment' and decisions.seq < lost.seq
    group by lost.shard, lost.seq
),

lived as (
    select
        lost.*,
        lost.at_ms - coalesce(silences.silent_ms, 0) + coalesce(intervals.heartbeat_ms, 0) as until_ms
    from lost
    left join silences using (shard, seq)
    left join intervals using (shard, seq)
),

committed as (
    select
        lived.shard,
        lived.seq,
        max_by(offsets.committed_offset, (lived.era, offsets.seq)) as committed_offset
    from lived
    inner join offsets using (shard, group_id, topic, broker, queue_id)
    where offsets.seq < lived.seq
    group by lived.shard, lived.seq
),

reached as (
    select
        lived.shard,
        lived.seq,
        max_by(end_offsets.end_offset, end_offsets.at_ms) as end_offset,
        max_by(
            end_offsets.end_offset, case when end_offsets.at_ms <= lived.until_ms then end_offsets.at_ms end
        ) as readable_offset
    from lived
    inner join end_offsets using (topic, broker, queue_id)
    where end_offsets.at_ms <= lived.at_ms
    group by lived.shard, lived.seq
),

final as (
    select
        lived.group_id,
        timestamp_millis(lived.at_ms) as handed_over_at,
        lived.client_id as killed_client_id,
        count(*) as queues,
        cast(sum(greatest(reached.readable_offset - committed.committed_offset, 0)) as bigint) as repeats_at_most,
        cast(sum(greatest(reached.end_offset - committed.committed_offset, 0)) as bigint) as unread_at_hand_over
    from lived
    left join committed using (shard, seq)
    left join reached using (shard, seq)
    group by lived.group_id, lived.at_ms, lived.client_id
)

select * from final order by group_id, handed_over_at, killed_client_id
