-- Who owns what now?  One row a (group_id, topic, broker, queue_id); client_id null: nobody.
with timeline as (select * from {{ ref('ownership_timeline') }}),

final as (
    select
        group_id,
        topic,
        broker,
        queue_id,
        client_id,
        previous_client_id,
        epoch,
        how,
        owned_from
    from timeline
    -- A queue whose topic is gone, or that nobody reads any more, is nobody's business.
    where owned_to is null and not (how = 'removed' and client_id is null)
)

select * from final
