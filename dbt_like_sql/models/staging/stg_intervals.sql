-- The interval between two heartbeats that each assignment demands.  One row per (shard, seq).
with decisions as (select * from {{ source('ledger', 'decisions') }}),

final as (
    select
        shard,
        {{ era() }} as era,
        seq,
        group_id,
        client_id,
        cast(nullif(regexp_extract(json, '"heartbeat_ms":([0-9]{1,9})', 1), '') as bigint) as heartbeat_ms
    from decisions
    where kind = 'assignment'
)

select * from final
