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
    concat_ws('/', before.topic, before.partition, before.offset) as at,
    concat('the record before it is ', previous) as found,
    concat('the record before it is ', before.offset - 1) as expected
from before
left join lost_rows
    on
        lost_rows.table_name = 'events'
        and before.topic = lost_rows.topic
        and before.partition = lost_rows.partition
        and lost_rows.first_lost <= previous + 1
        and lost_rows.last_lost >= before.offset - 1
where before.offset > previous + 1 and lost_rows.first_lost is null
