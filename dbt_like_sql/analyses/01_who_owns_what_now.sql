-- Who owns what now?
with owned as (select * from {{ ref('current_ownership') }}),

final as (
    select
        group_id,
        coalesce(client_id, 'nobody') as owner,
        array_join(collect_list(concat(topic, '-', queue_id)), ', ') as queues
    from (select * from owned order by topic, queue_id)
    group by group_id, client_id
)

select * from final order by group_id, owner
