-- Who is behind, by how much, and since when?
with lag as (select * from {{ ref('consumer_lag') }}),

final as (
    select
        group_id,
        topic,
        count(*) as queues,
        sum(lag_messages) as lag_messages,
        count(*) - count(lag_messages) as queues_unknown,
        max(lag_s) as oldest_s,
        round(sum(consumed_per_s), 1) as consumed_per_s,
        round(max(catch_up_s), 1) as catch_up_s
    from lag
    group by group_id, topic
)

select * from final order by lag_messages desc nulls first, group_id, topic
