-- How long did nobody read a queue before its owner expired?  One row per hand-over of such a queue.
--
-- A member that was killed, or cannot reach Kafka, keeps its queues until its session ends.  A fence at a later log time
-- than the expiration answers a record of the same instance: its process was alive.
with lost as (
    select
        shard,
        era,
        seq,
        at_ms,
        group_id,
        queue,
        {slice} as slice,
        handovers.from as client_id,
        handovers.to as to_client_id
    from handovers
    where how = 'expired'
),

expirations as (
    select
        memberships.*,
        cast(nullif(regexp_extract(detail, 'no heartbeat for ([0-9]+) ms', 1), '') as bigint) as silent_ms
    from memberships
    where change = 'expired'
),

ended as (
    select
        lost.shard,
        lost.seq,
        max_by(expirations.instance_id, (expirations.era, expirations.seq)) as instance_id,
        max_by(expirations.at_ms, (expirations.era, expirations.seq)) as expired_ms,
        max_by(expirations.silent_ms, (expirations.era, expirations.seq)) as silent_ms
    from lost
    inner join expirations
        on
            lost.group_id = expirations.group_id
            and lost.client_id = expirations.client_id
            and (expirations.era, expirations.seq) < (lost.era, lost.seq)
    group by lost.shard, lost.seq
),

answered as (
    select
        ended.shard,
        ended.seq,
        min(fencings.at_ms) as returned_ms
    from ended
    inner join lost using (shard, seq)
    inner join fencings
        on
            lost.group_id = fencings.group_id
            and lost.client_id = fencings.client_id
            and ended.instance_id = fencings.instance_id
            and ended.expired_ms < fencings.at_ms
    where fencings.reason in ('expired', 'kicked')
    group by ended.shard, ended.seq
),

final as (
    select
        lost.group_id,
        lost.queue.topic,
        lost.queue.broker,
        lost.queue.queue_id,
        lost.slice,
        lost.client_id,
        ended.instance_id,
        lost.to_client_id,
        ended.silent_ms,
        ended.expired_ms - ended.silent_ms as heard_ms,
        answered.returned_ms,
        lost.at_ms,
        lost.shard,
        lost.era,
        lost.seq
    from lost
    inner join ended using (shard, seq)
    left join answered using (shard, seq)
)

select * from final
