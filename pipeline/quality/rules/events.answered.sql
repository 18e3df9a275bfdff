-- a pull is answered by a wake, or rejected, once the log has gone on past its deadline
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
    'a decision of kind wake' as expected
from awaited
inner join reach using (topic, partition)
left anti join refused using (topic, partition, offset)
left anti join wake_decisions
    on awaited.client_id = wake_decisions.client_id and awaited.request_id = wake_decisions.request_id
where awaited.answer = 'wake' and awaited.offset >= reach.from_offset and awaited.until_offset <= reach.to_offset
