-- Who owns which queue now?
with owned as (select * from {{ ref('current_ownership') }}),

shares as (
    select
        group_id,
        coalesce(client_id, 'nobody') as owner,
        {{ listed(queue_name(), 'topic, broker, queue_id, slice') }} as queues
    from owned
    group by group_id, client_id
),

final as (
    select
        group_id,
        owner,
        queues
    from shares
)

select * from final order by group_id, owner
