-- Who owned orders-3 for the group billing, and when?
with timeline as (select * from {{ ref('ownership_timeline') }}),

final as (
    select
        era,
        seq,
        slice,
        owned_from,
        owned_to,
        owned_s,
        coalesce(client_id, 'nobody') as owner,
        how,
        epoch
    from timeline
    where group_id = 'billing' and topic = 'orders' and queue_id = 3
)

select * except (era, seq) from final order by era, seq
