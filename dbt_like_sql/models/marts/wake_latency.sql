-- How long were pulls held, and how soon after a message were they answered?  One row per (topic, reason).
with wakes as (select * from {{ ref('stg_wakes') }}),

final as (
    select
        topic,
        reason,
        count(*) as wakes,
        percentile(held_ms, 0.5) as held_p50_ms,
        percentile(held_ms, 0.95) as held_p95_ms,
        percentile(held_ms, 0.99) as held_p99_ms,
        max(held_ms) as held_max_ms,
        percentile(arrival_to_wake_ms, 0.5) as arrival_to_wake_p50_ms,
        percentile(arrival_to_wake_ms, 0.95) as arrival_to_wake_p95_ms,
        percentile(arrival_to_wake_ms, 0.99) as arrival_to_wake_p99_ms,
        max(arrival_to_wake_ms) as arrival_to_wake_max_ms
    from wakes
    group by topic, reason
)

select * from final
