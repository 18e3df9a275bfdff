-- How long were pulls held, and how soon after a message were they answered?  One row per (topic, reason).
with wakes as (select * from {{ ref('stg_wakes') }}),

final as (
    select
        topic,
        reason,
        count(*) as wakes,
        percentile_cont(0.5) within group (order by held_ms) as held_p50_ms,
        percentile_cont(0.95) within group (order by held_ms) as held_p95_ms,
        percentile_cont(0.99) within group (order by held_ms) as held_p99_ms,
        max(held_ms) as held_max_ms,
        percentile_cont(0.5) within group (order by arrival_to_wake_ms) as arrival_to_wake_p50_ms,
        percentile_cont(0.95) within group (order by arrival_to_wake_ms) as arrival_to_wake_p95_ms,
        percentile_cont(0.99) within group (order by arrival_to_wake_ms) as arrival_to_wake_p99_ms,
        max(arrival_to_wake_ms) as arrival_to_wake_max_ms
    from wakes
    group by topic, reason
)

select * from final
