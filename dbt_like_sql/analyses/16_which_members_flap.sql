-- Which members flap: join at least three times within an hour?
with memberships as (select * from {{ source('ledger', 'memberships') }}),

final as (
    select
        group_id,
        client_id,
        date_trunc('hour', log_time) as hour,
        count(case when change = 'joined' then 1 end) as joins,
        count(case when change = 'left' then 1 end) as leaves,
        count(case when change = 'expired' then 1 end) as expirations,
        count(distinct instance_id) as instances
    from memberships
    where change in ('joined', 'left', 'died', 'expired', 'gone', 'kicked')
    group by group_id, client_id, date_trunc('hour', log_time)
    having count(case when change = 'joined' then 1 end) >= 3
)

select * from final order by joins desc, group_id, client_id, hour
