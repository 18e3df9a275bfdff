-- a record that is no event has a rejected decision
with refused as (
    select
        decisions.cause.topic,
        decisions.cause.partition,
        decisions.cause.offset
    from decisions
    where kind = 'rejected'
)

select
    concat_ws('/', topic, partition, offset) as at,
    concat('no decision about it; ', why) as found,
    'a decision of kind rejected' as expected
from awaited
inner join reach using (topic, partition)
left anti join refused using (topic, partition, offset)
where awaited.answer = 'rejected' and awaited.offset >= reach.from_offset and awaited.until_offset <= reach.to_offset
