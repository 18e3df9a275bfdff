-- The hand-over decisions and the table `assignments` agree.
with handovers as (select * from {{ ref('stg_handovers') }}),

assignments as (select * from {{ ref('stg_assignments') }}),

final as (
    select
        shard,
        seq,
        handovers.to_client_id,
        assignments.client_id
    from handovers
    full outer join assignments using (shard, seq)
    where
        handovers.group_id is null
        or assignments.group_id is null
        or handovers.to_client_id is distinct from assignments.client_id
)

select * from final
