-- How long are pulls held, and how soon after a message are they answered?
with latency as (select * from {{ ref('wake_latency') }}),

final as (
    select
        topic,
        reason,
        wakes,
        held_p50_ms,
        held_max_ms,
        arrival_to_wake_p50_ms,
        arrival_to_wake_max_ms
    from latency
)

select * from final order by topic, reason
