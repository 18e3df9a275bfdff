-- Every record of the control topics.  One row per (topic, partition, offset).
with events as (select * from {{ source('ledger', 'events') }}),

final as (
    select
        topic,
        partition,
        offset,
        type,
        cast(key as string) as key,
        cast(value as string) as value,
        timestamp_millis(at_ms) as event_at
    from events
)

select * from final
