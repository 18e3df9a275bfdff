-- Which members have preferences that conflict with the oldest member, whose preferences apply?
--
-- One row per (shard, seq).  A conflict lasts until the client agrees, has another conflict, leaves, or joins again.
with memberships as (select * from {{ ref('stg_memberships') }}),

about_clients as (select * from memberships where client_id <> '' and not is_duplicate_id),

followed as (
    select
        *,
        lead(changed_at) over next_change as next_at,
        lead(change) over next_change as next_change
    from about_clients
    -- A change of subscription does not show whether the conflict continues.
    where change in ('conflict', 'agreed', 'joined', 'left', 'died', 'expired', 'gone', 'kicked', 'replaced')
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
        -- The clock of a new leader may be behind.
        case when next_at < changed_at then changed_at else next_at end as ended_at,
        next_change as ended_by,
        next_change is null as is_open
    from followed
    where change = 'conflict'
)

select * from final
