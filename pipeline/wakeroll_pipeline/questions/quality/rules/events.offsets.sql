-- the records of a partition have no gap after the first one in the table
with before as (
    select
        topic,
        partition,
        events.offset,
        lag(events.offset) over (partition by topic, partition order by events.offset) as previous
    from events
)

select
    concat_ws('/', topic, partition, before.offset) as at,
    concat('the record before it is ', previous) as found,
    concat('the record before it is ', before.offset - 1) as expected
from before
where before.offset > previous + 1
