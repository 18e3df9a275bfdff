-- Who owns which queue now?  One row per (group_id, topic, broker, queue_id, slice); client_id is null if no
-- member owns it.  Of a partition whose number of slices has changed, only the present queues have rows.
--
-- A new era of a shard begins without owners, so decisions of earlier eras do not count.
with newest_eras as (
    select
        split_part(shard, '.', 1) as shard_name,
        max(era) as era
    from decisions
    group by 1
),

ranked as (
    select
        assignments.*,
        row_number() over (
            partition by group_id, topic, broker, queue_id, slice
            order by assignments.era desc, assignments.seq desc
        ) as nth_newest
    from assignments
    inner join newest_eras
        on split_part(assignments.shard, '.', 1) = newest_eras.shard_name and assignments.era = newest_eras.era
),

final as (
    select
        group_id,
        topic,
        broker,
        queue_id,
        slice,
        client_id,
        epoch,
        from_ms,
        previous_client_id,
        how,
        shard,
        era,
        seq
    from ranked
    where nth_newest = 1 and how <> 'cut'
)

select * from final
