-- Which names do two processes use?  One row a (group_id, client_id).
with memberships as (select * from {{ ref('stg_memberships') }}),

reports as (
    select
        group_id,
        client_id,
        count(*) as reports,
        min(changed_at) as first_reported_at,
        max(changed_at) as last_reported_at,
        max_by(detail, struct(era, seq)) as last_detail
    from memberships
    where is_duplicate_id
    group by group_id, client_id
),

lives as (
    select
        group_id,
        client_id,
        count_if(change = 'replaced') as replacements,
        count(distinct instance_id) as instances
    from memberships
    where instance_id <> ''
    group by group_id, client_id
),

final as (
    select
        reports.group_id,
        reports.client_id,
        reports.reports,
        lives.replacements,
        lives.instances,
        reports.first_reported_at,
        reports.last_reported_at,
        reports.last_detail
    from reports
    left join lives using (group_id, client_id)
)

select * from final
