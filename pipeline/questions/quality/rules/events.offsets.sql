-- the records of a partition have no gap, from the first one in the table
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
    concat('it follows ', offset - 1) as expected
from before
where offset > previous + 1
