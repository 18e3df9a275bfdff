-- an owner is a member of its group
with latest as (
    select
        group_id,
        client_id,
        max_by(struct(change, shard, seq, memberships.cause.offset as cause_offset), struct(era, seq)) as last
    from memberships
    -- The changes `conflict` and `agreed` do not show whether the client is a member.
    where client_id <> '' and change not in ('conflict', 'agreed')
    group by group_id, client_id
),

-- The decisions that one record causes may be split over two batches, and a batch commits its tables in parallel.  So
-- only decisions of earlier records are complete in both tables.
settled as (
    select
        shard,
        max(decisions.cause.offset) as cause_offset
    from assignments
    inner join decisions using (shard, seq)
    group by shard
)

select
    concat_ws('/', group_id, topic, broker, queue_id) as at,
    concat('owner ', client_id, ', which ', last.change, ' in ', concat_ws('/', last.shard, last.seq)) as found,
    'an owner that is a member' as expected
from current_assignments
inner join latest using (group_id, client_id)
inner join settled on latest.last.shard = settled.shard
where last.change not in ('joined', 'resubscribed', 'replaced') and last.cause_offset < settled.cause_offset
