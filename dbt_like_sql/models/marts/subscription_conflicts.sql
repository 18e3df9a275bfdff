-- Which members want something else than the oldest one, by which their group goes?  One row a (shard, seq).
--
-- It lasts until the client agrees, says something else, or is gone.
with memberships as (select * from {{ ref('stg_memberships') }}),

about_clients as (select * from memberships where client_id <> '' and not is_duplicate_id),

followed as (
    select
        *,
        lead(changed_at) over next_change as next_at,
        lead(change) over next_change as next_change
    from about_clients
    -- Coming, and wanting another topic, say nothing of whether it still differs.
    where change in ('conflict', 'agreed', 'left', 'expired', 'replaced')
    window next_change as (partition by group_id, client_id order by era, seq)
),

final as (
    select
        shard,
        seq,
        group_id,
        client_id,
        instance_id,
        epoch,
        detail,
        changed_at as began_at,
        next_at as ended_at,
        next_change as ended_by,
        next_at is null as is_open
    from followed
    where change = 'conflict'
)

select * from final
