-- Every record of the control topics.  One row per (topic, partition, offset).
with events as (select * from {{ source('ledger', 'events') }}),

final as (
    select
        topic,
        partition,
        events.offset,
        type,
        {{ text_of('key') }} as key,
        {{ text_of('value') }} as value,
        {{ log_time('at_ms') }} as event_at
    from events
)

select * from final
