-- Which first and end offsets did the observer and the producers report?  One row per (topic, broker, queue_id, seen_at).
with end_offsets as (select * from {{ source('ledger', 'end_offsets') }}),

final as (
    select
        topic,
        broker,
        queue_id,
        end_offset,
        first_offset,
        {{ log_time('at_ms') }} as seen_at
    from end_offsets
)

select * from final
