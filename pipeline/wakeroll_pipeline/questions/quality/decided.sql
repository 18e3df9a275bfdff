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

-- Rows before the first one of a shard in either table, or before the archived log, may be deleted already; rows after
-- the last one may not be written yet.
common as (
    select
        shard,
        greatest(made.first_seq, rows.first_seq) as first_seq,
        least(made.last_seq, rows.last_seq) as last_seq
    from (select shard, min(seq) as first_seq, max(seq) as last_seq from told group by shard) as made
    inner join (select shard, min(seq) as first_seq, max(seq) as last_seq from {table} group by shard) as rows
        using (shard)
)

select
    concat_ws('/', shard, seq) as at,
    coalesce(rows.says, 'no row') as found,
    coalesce(made.says, 'no row') as expected
from made
full outer join rows using (shard, seq)
inner join common using (shard)
where rows.says is distinct from made.says and seq between first_seq and last_seq
