-- How far behind is each group now?  One row per (group_id, topic, broker, queue_id, slice, offset_owner).
with lag as (select * from {{ source('ledger', 'lag') }}),

final as (
    select
        group_id,
        topic,
        broker,
        queue_id,
        slice,
        coalesce(client_id, '') as offset_owner,
        committed_offset,
        end_offset,
        lag_messages,
        lag_ms / 1000 as lag_s,
        {{ log_time('committed_ms') }} as committed_at,
        {{ log_time('as_of_ms') }} as as_of
    from lag
)

select * from final
