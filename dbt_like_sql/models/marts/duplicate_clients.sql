-- Which client_ids do two processes use?  One row per (group_id, client_id).
--
-- A client is listed if one of its instances was fenced as a duplicate of a live one, or if a conflict reports that.
with memberships as (select * from {{ ref('stg_memberships') }}),

fencings as (select * from {{ ref('stg_fencings') }}),

duplicates as (
    select
        *,
        row_number() over (partition by group_id, client_id, instance_id order by era, seq) as nth
    from fencings
    where reason = 'duplicate'
),

reported as (
    select
        group_id,
        client_id,
        era,
        seq,
        changed_at as reported_at,
        detail
    from memberships
    where is_duplicate_id
    union all
    select
        group_id,
        client_id,
        era,
        seq,
        fenced_at as reported_at,
        'duplicate id: instance ' || instance_id || ' was fenced'
        || case when by_instance_id = '' then '' else ', ' || by_instance_id || ' lives' end as detail
    from duplicates
    -- Each heartbeat of an ended instance is fenced again; only the first one counts.
    where nth = 1
),

reports as (
    select
        group_id,
        client_id,
        count(*) as reports,
        min(reported_at) as first_reported_at,
        max(reported_at) as last_reported_at,
        max_by(detail, (era, seq)) as last_detail
    from reported
    group by group_id, client_id
),

lives as (
    select
        group_id,
        client_id,
        instance_id,
        false as is_fenced
    from memberships
    where instance_id <> ''
    union all
    select
        group_id,
        client_id,
        instance_id,
        reason in ('duplicate', 'replaced') as is_fenced
    from fencings
),

counted as (
    select
        group_id,
        client_id,
        count(distinct case when is_fenced then instance_id end) as fenced_instances,
        count(distinct instance_id) as instances
    from lives
    group by group_id, client_id
),

final as (
    select
        reports.group_id,
        reports.client_id,
        reports.reports,
        counted.fenced_instances,
        counted.instances,
        reports.first_reported_at,
        reports.last_reported_at,
        reports.last_detail
    from reports
    left join counted using (group_id, client_id)
)

select * from final
