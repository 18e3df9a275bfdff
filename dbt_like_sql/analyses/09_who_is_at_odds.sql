-- Which members conflict with their group: other subscriptions, or two processes with one client_id?
with conflicts as (select * from {{ ref('subscription_conflicts') }}),

duplicates as (select * from {{ ref('duplicate_clients') }}),

final as (
    select
        group_id,
        client_id,
        began_at,
        is_open,
        detail
    from conflicts
    union all
    select
        group_id,
        client_id,
        first_reported_at as began_at,
        true as is_open,
        last_detail as detail
    from duplicates
)

select * from final order by group_id, client_id, began_at
