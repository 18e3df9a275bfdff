-- an owner is a member of its group
with latest as (
    select
        group_id,
        client_id,
        max_by(struct(change, shard, seq, memberships.cause.offset as cause_offset), struct(era, seq)) as last
    from memberships
    -- A conflict, and its end, do not say whether the client is a member.
    where client_id <> '' and change not in ('conflict', 'agreed')
    group by group_id, client_id
),

-- What a record leads to may come in two batches, and tables one beside the other: what is before it is there in both.
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
    concat(client_id, ' has it, and ', last.change, ' in ', concat_ws('/', last.shard, last.seq)) as found,
    'nobody who is gone has a queue' as expected
from current_assignments
inner join latest using (group_id, client_id)
inner join settled on latest.last.shard = settled.shard
where last.change not in ('joined', 'resubscribed', 'replaced') and last.cause_offset < settled.cause_offset
