-- an owner is a member of its group
with changes as (
    select
        group_id,
        client_id,
        change,
        shard,
        seq,
        memberships.cause.offset as cause_offset,
        row_number() over (partition by group_id, client_id order by era desc, seq desc) as nth_newest
    from memberships
    -- Other changes, such as `conflict` or `leaving`, do not show whether the client is a member.
    where
        client_id <> ''
        and change in ('joined', 'resubscribed', 'described', 'replaced', 'left', 'died', 'expired', 'gone', 'kicked')
),

latest as (select * from changes where nth_newest = 1),

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
    concat_ws('/', group_id, topic, broker, queue_id, slice) as at,
    concat('owner ', client_id, ', which ', latest.change, ' in ', concat_ws('/', latest.shard, latest.seq)) as found,
    'an owner that is a member' as expected
from current_assignments
inner join latest using (group_id, client_id)
inner join settled on latest.shard = settled.shard
anti join lost_rows on lost_rows.table_name = 'decisions' and latest.shard = lost_rows.shard
where latest.change not in ('joined', 'resubscribed', 'described', 'replaced') and latest.cause_offset < settled.cause_offset
