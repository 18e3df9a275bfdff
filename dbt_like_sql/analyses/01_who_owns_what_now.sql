-- Who owns which queue now?
with owned as (select * from {{ ref('current_ownership') }}),

shares as (
    select
        group_id,
        client_id,
        array_sort(collect_list(struct(topic, broker, queue_id))) as queues
    from owned
    group by group_id, client_id
),

final as (
    select
        group_id,
        coalesce(client_id, 'nobody') as owner,
        array_join(transform(queues, queue -> concat(queue.topic, '-', queue.queue_id)), ', ') as queues
    from shares
)

select * from final order by group_id, owner
