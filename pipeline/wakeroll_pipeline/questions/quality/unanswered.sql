-- Which records must have an answer by now, and have no rejection?  One row per record: see `Awaited`.
with refused as (
    select
        decisions.cause.topic,
        decisions.cause.partition,
        decisions.cause.offset
    from decisions
    where kind = 'rejected'
)

select awaited.*
from awaited
inner join reach using (topic, partition)
anti join refused
    on awaited.topic = refused.topic and awaited.partition = refused.partition and awaited.offset = refused.offset
where awaited.offset >= reach.from_offset and awaited.until_offset <= reach.to_offset
