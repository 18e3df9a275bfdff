-- the rows match the {decision} decisions
with made as (
    select
        shard,
        seq,
        {decided_as_json} as says
    from decided_{table}
),

rows as (
    select
        shard,
        seq,
        {row_as_json} as says
    from {table}
),

-- Readers get all tables of one moment, and retention deletes a row after its decision: each decision has its row.
final as (
    select
        concat_ws('/', shard, seq) as at,
        coalesce(rows.says, 'no row') as found,
        made.says as expected
    from made
    left join rows using (shard, seq)
    where rows.says is distinct from made.says
)

select * from final
