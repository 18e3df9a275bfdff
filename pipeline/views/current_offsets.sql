-- How far is each queue consumed?  One row a (group_id, topic, broker, queue_id) of a clustering group; in a
-- broadcasting one each client has offsets of its own: one row a (group_id, client_id, topic, broker, queue_id).
with modes as (
    select
        group_id,
        max_by(mode, struct(at_ms, shard, seq)) as mode
    from offsets
    group by group_id
),

ranked as (
    select
        offsets.*,
        row_number() over (
            partition by
                offsets.group_id,
                offsets.topic,
                offsets.broker,
                offsets.queue_id,
                case when offsets.mode = 'broadcasting' then offsets.client_id end
            order by offsets.at_ms desc, offsets.shard desc, offsets.seq desc
        ) as newest
    from offsets
    inner join modes using (group_id, mode)
),

final as (
    select group_id, topic, broker, queue_id, client_id, committed_offset, epoch, at_ms, reset_by, mode
    from ranked
    where newest = 1
)

select * from final
