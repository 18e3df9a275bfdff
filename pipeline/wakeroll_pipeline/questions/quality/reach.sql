-- Which range of each partition's log is decided?  One row per (topic, partition): from_offset to to_offset.
--
-- A later era begins without the pulls that were held before, and does not publish its decisions about old records.
with eras as (
    select
        decisions.cause.topic,
        decisions.cause.partition,
        era,
        min(seq) as first_seq,
        min(decisions.cause.offset) as first_offset,
        max(decisions.cause.offset) as last_offset
    from decisions
    group by 1, 2, 3
),

newest as (
    select
        topic,
        partition,
        max_by(case when era = 1 and first_seq = 1 then 0 else first_offset end, era) as from_offset,
        max(last_offset) as last_offset
    from eras
    group by topic, partition
),

states as (
    select
        topic,
        partition,
        case when min(era) = 1 then 0 else min(snapshots.offset) end as from_offset,
        max(snapshots.offset) as last_offset
    from snapshots
    group by topic, partition
),

-- A partition without decisions appears in the snapshots only.
final as (
    select
        topic,
        partition,
        coalesce(newest.from_offset, states.from_offset) as from_offset,
        greatest(newest.last_offset, states.last_offset) as to_offset
    from newest
    full outer join states using (topic, partition)
)

select * from final
