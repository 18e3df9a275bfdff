-- What is the committed offset of each queue now?  One row per (group_id, topic, broker, queue_id, offset_owner).
with current_offsets as (select * from {{ source('ledger', 'current_offsets') }}),

final as (
    select
        group_id,
        topic,
        broker,
        queue_id,
        case when mode = 'broadcasting' then client_id else '' end as offset_owner,
        client_id,
        committed_offset,
        mode,
        {{ log_time('at_ms') }} as committed_at
    from current_offsets
)

select * from final
