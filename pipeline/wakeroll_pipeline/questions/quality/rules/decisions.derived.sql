-- a row of assignments or offsets has its decision
with rows as (
    select
        'assignments' as table_name,
        shard,
        seq
    from assignments
    union all
    select
        'offsets' as table_name,
        shard,
        seq
    from offsets
),

-- Retention deletes a decision before its row. It keeps those whose records are archived, and the latest of each kind.
kept as (
    select
        shard,
        coalesce(min(case when is_archived then seq end), max(seq)) as first_seq
    from told
    group by shard
)

select
    concat_ws('/', shard, seq) as at,
    concat('a row of ', table_name, ' without its decision') as found,
    'a decision' as expected
from rows
anti join decisions using (shard, seq)
anti join lost_rows
    on
        lost_rows.table_name = 'decisions'
        and rows.shard = lost_rows.shard
        and rows.seq between lost_rows.first_lost and lost_rows.last_lost
left join kept using (shard)
where seq >= coalesce(first_seq, 0)
