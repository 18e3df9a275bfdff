-- Every advance, reset or deletion of a committed offset.  One row per (shard, seq).
--
-- In a broadcasting group each client has its own offset per queue, and offset_owner names it; otherwise it is empty.
with offsets as (select * from {{ source('ledger', 'offsets') }}),

final as (
    select
        shard,
        {{ era() }} as era,
        seq,
        group_id,
        topic,
        broker,
        queue_id,
        slice,
        client_id,
        case when mode = 'broadcasting' then client_id else '' end as offset_owner,
        committed_offset,
        epoch,
        mode,
        reset_by,
        deleted,
        {{ log_time('at_ms') }} as committed_at
    from offsets
)

select * from final
