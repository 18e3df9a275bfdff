-- the records of a partition have no gap after the first one in the table
with before as (
    select
        topic,
        partition,
        offset,
        lag(offset) over (partition by topic, partition order by offset) as previous
    from events
)

select
    concat_ws('/', topic, partition, offset) as at,
    concat('the record before it is ', previous) as found,
    concat('the record before it is ', offset - 1) as expected
from before
where offset > previous + 1
