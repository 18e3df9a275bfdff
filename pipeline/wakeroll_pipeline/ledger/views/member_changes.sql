-- When did members join and leave, and did they come back, as which version?  One row per change of one member.
--
-- A client describes itself when it joins, or later; the newest description of an instance counts for all its changes.
with described as (
    select
        group_id,
        client_id,
        instance_id,
        max_by(host, (era, seq)) as host,
        max_by(app_version, (era, seq)) as app_version
    from memberships
    where change in ('joined', 'described') and coalesce(host, app_version) is not null
    group by group_id, client_id, instance_id
),

changes as (
    select
        memberships.group_id,
        memberships.client_id,
        memberships.instance_id,
        memberships.change,
        memberships.change = 'joined' as is_join,
        described.host,
        coalesce(described.app_version, '') as app_version,
        memberships.at_ms,
        memberships.shard,
        memberships.era,
        memberships.seq
    from memberships
    left join described using (group_id, client_id, instance_id)
    where memberships.change in ('joined', 'left', 'died', 'expired', 'gone', 'kicked')
),

followed as (
    select
        *,
        lag(is_join) over (partition by group_id, client_id order by era, seq) as was_join,
        lag(app_version) over (partition by group_id, client_id order by era, seq) as version_before
    from changes
),

final as (
    select
        group_id,
        client_id,
        instance_id,
        change,
        is_join,
        coalesce(is_join and not was_join, false) as is_return,
        host,
        app_version,
        version_before,
        at_ms,
        shard,
        era,
        seq
    from followed
)

select * from final
