-- Who is behind, by how much, and since when?
with lag as (select * from {{ ref('consumer_lag') }}),

-- A partition is behind as far as the one of its slices that is furthest behind.
partitions as (
    select
        group_id,
        topic,
        count(*) as queues,
        max(lag_messages) as lag_messages,
        count(*) - count(lag_messages) as queues_unknown,
        max(lag_s) as oldest_s,
        avg(consumed_per_s) as consumed_per_s,
        max(catch_up_s) as catch_up_s
    from lag
    group by group_id, topic, broker, queue_id, offset_owner
),

final as (
    select
        group_id,
        topic,
        sum(queues) as queues,
        sum(lag_messages) as lag_messages,
        sum(queues_unknown) as queues_unknown,
        max(oldest_s) as oldest_s,
        round(sum(consumed_per_s), 1) as consumed_per_s,
        round(max(catch_up_s), 1) as catch_up_s
    from partitions
    group by group_id, topic
)

select * from final order by lag_messages desc nulls first, group_id, topic
