-- What is the committed offset of each queue?
--
-- A clustering group has one row per (group_id, topic, broker, queue_id, slice).  The clients of a broadcasting group have
-- their own offsets: one row per (group_id, client_id, topic, broker, queue_id).  Offsets that were deleted, also with
-- their group, have none.
with ranked as (
    select
        *,
        first_value(mode) over (partition by group_id order by era desc, seq desc) as group_mode,
        row_number() over (
            partition by
                group_id,
                mode,
                topic,
                broker,
                queue_id,
                slice,
                case when mode = 'broadcasting' then client_id end
            order by era desc, seq desc
        ) as newest
    from offsets
),

forgotten as (
    select
        group_id,
        era,
        seq
    from memberships
    where change = 'forgotten'
),

final as (
    select
        ranked.group_id,
        ranked.topic,
        ranked.broker,
        ranked.queue_id,
        ranked.slice,
        ranked.client_id,
        ranked.committed_offset,
        ranked.epoch,
        ranked.at_ms,
        ranked.reset_by,
        ranked.mode,
        ranked.shard,
        ranked.era,
        ranked.seq
    from ranked
    left join forgotten
        on
            ranked.group_id = forgotten.group_id
            and (
                ranked.era < forgotten.era
                or (ranked.era = forgotten.era and ranked.seq < forgotten.seq)
            )
    where ranked.newest = 1 and ranked.mode = ranked.group_mode and ranked.deleted is null and forgotten.group_id is null
)

select * from final
