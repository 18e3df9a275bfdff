-- Who is in which group now?  One row per (group_id, client_id).
--
-- A new era of a shard begins without members, so decisions of earlier eras do not count.  The change `replaced` occurs
-- in ledgers of protocol version 1, in which a new instance replaced a live one.
with newest_eras as (
    select
        split_part(shard, '.', 1) as shard_name,
        max(era) as era
    from decisions
    group by 1
),

changes as (
    select memberships.*
    from memberships
    inner join newest_eras
        on split_part(memberships.shard, '.', 1) = newest_eras.shard_name and memberships.era = newest_eras.era
    -- Other changes, such as `conflict` or `leaving`, do not show whether the client is a member.
    where
        client_id <> ''
        and change in ('joined', 'resubscribed', 'described', 'replaced', 'left', 'died', 'expired', 'gone', 'kicked')
),

ranked as (
    select
        *,
        row_number() over (partition by group_id, client_id order by era desc, seq desc) as nth_newest,
        row_number() over (
            partition by group_id, client_id, instance_id, change in ('joined', 'replaced')
            order by era desc, seq desc
        ) as nth_newest_entry,
        row_number() over (
            partition by group_id, client_id, instance_id, change in ('joined', 'described')
            order by era desc, seq desc
        ) as nth_newest_description,
        row_number() over (
            partition by group_id, client_id, instance_id, change in ('joined', 'resubscribed')
            order by era desc, seq desc
        ) as nth_newest_subscription
    from changes
),

entered as (
    select
        group_id,
        client_id,
        instance_id,
        at_ms as joined_ms,
        shard,
        era,
        seq
    from ranked
    where change in ('joined', 'replaced') and nth_newest_entry = 1
),

-- The client describes itself when it joins, and later if its description has changed or was lost.
described as (
    select
        group_id,
        client_id,
        instance_id,
        host,
        sdk,
        app_version,
        labels
    from ranked
    where change in ('joined', 'described') and nth_newest_description = 1
),

-- `matched` is about the whole group, so the client's own changes show its pattern.
subscribed as (
    select
        group_id,
        client_id,
        instance_id,
        pattern
    from ranked
    where change in ('joined', 'resubscribed') and nth_newest_subscription = 1
),

owned as (
    select
        group_id,
        client_id,
        count(*) as queues
    from current_assignments
    where client_id is not null
    group by group_id, client_id
),

final as (
    select
        ranked.group_id,
        ranked.client_id,
        ranked.instance_id,
        entered.joined_ms,
        coalesce(owned.queues, 0) as queues,
        described.host,
        described.sdk,
        described.app_version,
        described.labels,
        subscribed.pattern,
        entered.shard,
        entered.era,
        entered.seq
    from ranked
    inner join entered using (group_id, client_id, instance_id)
    left join described using (group_id, client_id, instance_id)
    left join subscribed using (group_id, client_id, instance_id)
    left join owned using (group_id, client_id)
    where ranked.nth_newest = 1 and ranked.change in ('joined', 'resubscribed', 'described', 'replaced')
)

select * from final
