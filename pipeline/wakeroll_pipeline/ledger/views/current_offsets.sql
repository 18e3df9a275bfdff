-- What is the committed offset of each queue?
--
-- A clustering group has one row per (group_id, topic, broker, queue_id).  The clients of a broadcasting group have
-- their own offsets: one row per (group_id, client_id, topic, broker, queue_id).
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
                case when mode = 'broadcasting' then client_id end
            order by era desc, seq desc
        ) as newest
    from offsets
),

final as (
    select
        group_id,
        topic,
        broker,
        queue_id,
        client_id,
        committed_offset,
        epoch,
        at_ms,
        reset_by,
        mode,
        shard,
        era,
        seq
    from ranked
    where newest = 1 and mode = group_mode
)

select * from final
